"""Tensors as torch's C interface sees them: handles, made and read from Python.

A handle is a pointer to a new reference of a tensor; who has one must delete it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


@cache
def torch_library() -> Any:
    """libtorch_cpu, which exports the C interface; it is loaded already."""
    folder = Path(torch.__file__).parent / "lib"
    library = ctypes.CDLL(str(folder / "libtorch_cpu.so"))
    for name in ("aoti_torch_delete_tensor_object", "aoti_torch_get_data_ptr"):
        getattr(library, name).argtypes = [ctypes.c_void_p] * (1 + name.endswith("ptr"))
    library.aoti_torch_new_tensor_handle.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.aoti_torch_assign_tensors.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return library


def handles_of(tensors: Sequence[torch.Tensor]) -> list[int]:
    """A new handle for each tensor."""
    capsules = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(tensors))
    return [_capsule_pointer(capsule, None) for capsule in capsules]


def delete(handles: Sequence[int]) -> None:
    """Give handles back."""
    for handle in handles:
        torch_library().aoti_torch_delete_tensor_object(handle)


def tensor_of(handle: int) -> torch.Tensor:
    """The tensor behind a handle that somebody else owns."""
    copy = ctypes.c_void_p()
    torch_library().aoti_torch_new_tensor_handle(handle, ctypes.byref(copy))
    capsule = _new_capsule(copy.value, None, None)
    return torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule)


def tensors_taken(handles: Sequence[int]) -> list[torch.Tensor]:
    """The tensors behind handles that are ours now, and gone."""
    capsules = [_new_capsule(handle, None, None) for handle in handles]
    found: list[torch.Tensor] = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(capsules)
    return found


def assign(tensor: torch.Tensor, handle: int) -> None:
    """Make a handle that somebody else owns refer to this tensor."""
    (source,) = handles_of([tensor])
    torch_library().aoti_torch_assign_tensors(source, handle)
    delete([source])
