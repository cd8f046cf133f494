"""A compiled program in memory: loaded from bytes that were checked, never from a path.

The object is given to the dynamic linker through an anonymous file of this process, so nobody can
exchange it between the check and the load.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import torch

from pantile.errors import CompilerFailed, ExecutionError
from pantile.lowering.calls import CALLBACK, Calls
from pantile.lowering.handles import delete, handles_of, tensor_of

_loaded = count()


class NativeProgram:
    """The functions of one compiled program."""

    def __init__(self, code: bytes | memoryview, calls: Sequence[Mapping[str, Any]]) -> None:
        self.library = _load(code)
        self.calls = Calls(calls)
        if calls:
            self.library.pantile_set_callback(self.calls.callback)

    def address(self, name: str) -> int:
        """Where a function of the program is: `create`, `destroy`, `run`, `error`."""
        function = getattr(self.library, f"pantile_{name}")
        return ctypes.cast(function, ctypes.c_void_p).value or 0


class NativeRun:
    """A program with a context of its own, run from Python: for tests and timing."""

    def __init__(self, program: NativeProgram, outputs: int) -> None:
        self._program = program
        self._context = program.library.pantile_create()
        self._outputs = (ctypes.c_void_p * outputs)()

    def run(self, values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run once; the results are valid until the next run."""
        handles = handles_of(values)
        try:
            given = (ctypes.c_void_p * len(handles))(*handles)
            with torch.no_grad():
                failed = self._program.library.pantile_run(self._context, given, self._outputs)
            if failed:
                raise self.failure()
            return tuple(tensor_of(handle) for handle in self._outputs if handle)
        finally:
            delete(handles)

    def run_again(self, values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run once more on values whose constants are as in the run before."""
        keep = getattr(self._program.library, "pantile_keep", None)
        if keep is not None:  # of our own kernels
            keep(ctypes.c_void_p(self._context), 0)
        return self.run(values)

    def failure(self) -> BaseException:
        """What went wrong in the last run."""
        if self._program.calls.error is not None:
            return self._program.calls.error
        text = self._program.library.pantile_error(self._context).decode()
        return ExecutionError(
            f"the compiled program failed in {text}",
            fix='run with Options.engine("reference"), which names the line of the model',
        )

    def __del__(self) -> None:
        context, self._context = self.__dict__.get("_context"), None
        if context:
            self._program.library.pantile_destroy(context)


def _unique_path(descriptor: int) -> str:
    """A path to an open file that was never used before.

    The linker takes an object it has for one of the same path, and numbers of files are used again:
    the count of objects is written into the path, in ways of saying nothing.
    """
    ways = "".join("/./" if bit == "1" else "//" for bit in f"{next(_loaded):b}")
    return f"/proc/self/fd{ways}{descriptor}"


def _load(code: bytes | memoryview) -> Any:
    descriptor = os.memfd_create("pantile", os.MFD_CLOEXEC)
    try:
        remaining = memoryview(code)
        while remaining:
            remaining = remaining[os.write(descriptor, remaining) :]
        library = ctypes.CDLL(_unique_path(descriptor))
    except OSError as error:
        raise CompilerFailed(
            f"the compiled program cannot be loaded: {error}",
            fix='run with Options.engine("reference")',
        ) from error
    finally:
        os.close(descriptor)
    library.pantile_create.restype = ctypes.c_void_p
    library.pantile_destroy.argtypes = [ctypes.c_void_p]
    library.pantile_destroy.restype = None
    library.pantile_run.argtypes = [ctypes.c_void_p] * 3
    library.pantile_error.argtypes = [ctypes.c_void_p]
    library.pantile_error.restype = ctypes.c_char_p
    library.pantile_set_callback.argtypes = [CALLBACK]
    library.pantile_set_callback.restype = None
    return library
