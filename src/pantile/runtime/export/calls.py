"""The calls an executor was compiled for: written without their data, made again with zeros.

Capture runs again when a file is loaded; it needs the structure of the arguments, the shapes and
dtypes of their tensors, the constants among them, and the modes round the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pantile.program.structure import unflatten
from pantile.runtime.compiled import Compiled
from pantile.runtime.export.encode import Writer


@dataclass(frozen=True)
class Call:
    """One call to compile for."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    flags: tuple[bool, ...]
    autocast: torch.dtype | None
    ran: bool = False
    """Was it run before it was saved? Then a loaded executor goes on with its native code."""

    def modes(self) -> torch.autocast:
        """The autocast scope the call was made in."""
        dtype = torch.bfloat16 if self.autocast is None else self.autocast
        return torch.autocast("cpu", dtype=dtype, enabled=self.autocast is not None)


def calls_data(
    programs: Sequence[Compiled], writer: Writer, has_run: Callable[[Compiled], bool]
) -> list[Any]:
    """The calls of these programs; their tensors stand for arguments."""
    return [{**_call_data(compiled, writer), "ran": has_run(compiled)} for compiled in programs]


def _call_data(compiled: Compiled, writer: Writer) -> dict[str, Any]:
    specs = compiled.signature.specs
    tensors = [
        writer.as_input(torch.zeros(spec.shape, dtype=spec.dtype, device="cpu")) for spec in specs
    ]
    call = compiled.call
    args, kwargs = unflatten(call.structure, [tensors[place] for place in call.places])
    return {
        "args": tuple(args),
        "kwargs": dict(kwargs),
        "flags": compiled.variant.flags,
        "autocast": compiled.variant.autocast,
    }


def calls_from(data: Sequence[Mapping[str, Any]]) -> list[Call]:
    """The calls of such data."""
    return [
        Call(
            tuple(c["args"]),
            dict(c["kwargs"]),
            tuple(c["flags"]),
            c["autocast"],
            bool(c.get("ran")),
        )
        for c in data
    ]
