"""The environment variables options are read from.

    POPTORCH_CACHE_DIR           where executables are cached
    POPTORCH_DEFAULT_OPTIONS     JSON applied to every new Options
    POPTORCH_STRICT              1: refuse what the hardware would refuse
    PANTILE_ENGINE               reference | native | tiered
    PANTILE_PIPELINE_THREADS     how many stages may run at the same time
    POPTORCH_IPU_MODEL           1: report a simulator instead of a device
    POPTORCH_SMALL_IPU_MODEL     1: the same, with few tiles
    POPTORCH_IPU_MODEL_VERSION   ipu1 | ipu2 | ipu21
    POPTORCH_WAIT_FOR_IPU        1: wait for a device that another process has

A value that cannot be read is an error that names the variable, never a silent default.
"""

from __future__ import annotations

import os

from pantile.errors import OptionError
from pantile.options.validate import one_of

ENGINES = ("reference", "native", "tiered")
DEFAULT_ENGINE = "native"

IPU_VERSIONS = {"ipu1": 1, "ipu2": 2, "ipu21": 21}


def cache_dir() -> str | None:
    """The directory of the executable cache, if one is named."""
    return os.environ.get("POPTORCH_CACHE_DIR") or None


def default_options() -> str | None:
    """The JSON applied to every new `Options`, if any."""
    return os.environ.get("POPTORCH_DEFAULT_OPTIONS") or None


def strict() -> bool:
    """Whether strict mode is on unless a script says otherwise."""
    return switch("POPTORCH_STRICT")


def waits_for_ipu() -> bool:
    """Whether an executor waits for the device that it names."""
    return switch("POPTORCH_WAIT_FOR_IPU")


def engine() -> str | None:
    """The engine used unless a script chooses one; None if the environment chooses none."""
    name = os.environ.get("PANTILE_ENGINE")
    return one_of(*ENGINES)("environment variable PANTILE_ENGINE", name) if name else None


def pipeline_threads() -> int | None:
    """How many stages of a pipeline may run at the same time; None leaves it to the cores."""
    written = os.environ.get("PANTILE_PIPELINE_THREADS")
    if not written:
        return None
    if not written.isdecimal() or int(written) < 1:
        raise OptionError(
            f"environment variable PANTILE_PIPELINE_THREADS is {written!r}; it can be a number "
            "from 1 on",
            fix="export PANTILE_PIPELINE_THREADS=2",
        )
    return int(written)


def ipu_model() -> bool:
    """Whether a simulator was asked for instead of a device."""
    return switch("POPTORCH_IPU_MODEL") or switch("POPTORCH_SMALL_IPU_MODEL")


def ipu_model_version() -> int:
    """The IPU version a simulator stands for: 1, 2 or 21."""
    written = os.environ.get("POPTORCH_IPU_MODEL_VERSION") or "ipu2"
    return IPU_VERSIONS[
        one_of(*IPU_VERSIONS)("environment variable POPTORCH_IPU_MODEL_VERSION", written)
    ]


def switch(variable: str) -> bool:
    """A variable that is 1 for on, and 0, empty or absent for off."""
    written = os.environ.get(variable, "")
    if written not in ("", "0", "1"):
        raise OptionError(
            f"environment variable {variable} is {written!r}; it can be 0 or 1",
            fix=f"export {variable}=1",
        )
    return written == "1"
