"""What scripts ask about the device. A software IPU counts as hardware."""

from __future__ import annotations

import os

from pantile.errors import NoHardware

_VERSIONS = {"ipu1": 1, "ipu2": 2, "ipu21": 21}


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """True: software IPUs are always there. False when a script asks for the IPU model instead."""
    if num_ipus < 1:
        return False
    return not any(_asked(name) for name in ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL"))


def ipuHardwareVersion() -> int:
    """The version of the (software) IPU: 2, unless POPTORCH_IPU_MODEL_VERSION says otherwise."""
    if not ipuHardwareIsAvailable():
        raise NoHardware(
            "there is no IPU hardware: an IPU model was asked for",
            fix="unset POPTORCH_IPU_MODEL and POPTORCH_SMALL_IPU_MODEL",
        )
    return _VERSIONS.get(os.environ.get("POPTORCH_IPU_MODEL_VERSION", "ipu2"), -1)


def has_mlir_support() -> bool:
    """True: functions run on the device wherever this package runs."""
    return True


def _asked(name: str) -> bool:
    return os.environ.get(name, "0") not in ("", "0")
