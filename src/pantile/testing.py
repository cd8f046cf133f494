"""Helpers for users' tests."""

from __future__ import annotations

import enum
from typing import Any, NoReturn

import torch

from pantile.errors import Error, RecoverableError, UnrecoverableError


def allclose(ref: Any, other: Any) -> bool:
    """True if two nested values have the same structure and all tensors are close."""
    if isinstance(ref, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.allclose(ref, other)
    if isinstance(ref, (tuple, list)):
        return (
            type(ref) is type(other) and len(ref) == len(other) and all(map(allclose, ref, other))
        )
    return bool(ref == other)


class DeviceFault(enum.IntEnum):
    """Faults that a device and its libraries can report."""

    Poptorch = 0
    Popart = 1
    PopartInternal = 2
    Poplibs = 3
    PoplarUnrecoverable = 4
    PoplarUnknown = 5
    PoplarRecoverableFullReset = 6
    PoplarLinkError = 7


_TYPES = {
    DeviceFault.Poptorch: "poptorch_cpp_error",
    DeviceFault.Popart: "popart_exception",
    DeviceFault.PopartInternal: "popart_internal_exception",
    DeviceFault.Poplibs: "poplibs_exception",
    DeviceFault.PoplarUnknown: "poplar_unknown_runtime_error",
    DeviceFault.PoplarLinkError: "poplar_link_error",
}


def raise_fault(fault: DeviceFault) -> NoReturn:
    """Raise the error of a fault, for a script that tests what it does about it.

    Software devices have no such faults of their own.
    """
    message = f"fault {fault.name}, as asked for"
    error: Error
    if fault is DeviceFault.PoplarRecoverableFullReset:
        error = RecoverableError(message, recovery_action="FULL_RESET")
    elif fault is DeviceFault.PoplarUnrecoverable:
        error = UnrecoverableError(message)
    else:
        link = ": -lfoo not found" if fault is DeviceFault.PoplarLinkError else ""
        error = Error(message + link)
        error.type = _TYPES[fault]
    error.location = "throwTestError::bottomLevel, throwTestError::topLevel"
    error.args = (str(error),)
    raise error
