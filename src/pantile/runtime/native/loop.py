"""One device loop, as an executor sees it: give arguments, get results.

    loop = Loop(plan)
    results = loop.new_destinations()
    loop.run([images, labels], results)          all device iterations; the GIL is released

Arguments are checked at each call, before a pointer is taken. The C++ side comes back every 0.3 s
and is called again for the rest, so that Ctrl-C works.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pantile.errors import ExecutionError, InputMismatch, StateError
from pantile.runtime.native.loop_library import loop_library
from pantile.runtime.native.plan import Plan, broken_plan
from pantile.runtime.native.structures import Failure
from pantile.runtime.native.translation import CallMemory, Translation

DEADLINE = 0.3
"""Seconds after which the loop lets Python look for signals."""

_BACKTRACE = "\nException raised from"  # as torch's errors go on after their first lines

# The dtype, the shape, and whether a negation or conjugation may be pending: in a complex tensor,
# and in the imaginary part of a complex number. Longer imaginary parts are not contiguous.
_Check = tuple[torch.dtype, tuple[int, ...], bool]

# The shape, the strides, the dtype: what `_empty` wants to know.
_Kind = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]

# torch.empty for the CPU, without the way through torch's dispatcher, which takes 1 µs. No mode or
# default device can send it elsewhere, so there is memory behind the result.
_empty: Callable[..., Tensor] = torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined]
_data_ptr = Tensor.data_ptr


@dataclass(frozen=True, eq=False)
class LoopEntry:
    """The addresses of a loop, valid as long as the loop lives.

    Only one may run it at a time. `pointers` are those of arguments, then of results.
    """

    run: int
    loop: int
    failure: int
    iterations: int
    pointers: int
    constants: int


class Loop:
    """A plan, ready to run. One call at a time; calls of different loops may overlap."""

    def __init__(self, plan: Plan, *, deadline: float = DEADLINE) -> None:
        plan.check()
        self._plan = plan
        self._free = threading.Lock()
        self._iterations = plan.schedule.parts.shape[0]
        self._argument_checks = [_check_of(spec.dtype, spec.shape) for spec in plan.arguments]
        count = plan.schedule.results
        self._result_checks = [_check_of(spec.dtype, spec.joined(count)) for spec in plan.results]
        self._memory = CallMemory.of(plan)
        self._failure = Failure()
        self._failure_at = ctypes.addressof(self._failure)
        self._call, self._address, buffers = _created(plan, self._memory, deadline)
        self._whole_call = _prepared_call(self._address, self._iterations, self._failure_at)
        self._result_kinds = [_kind_of(spec.dtype, spec.joined(count)) for spec in plan.results]
        self._close = weakref.finalize(self, _destroy, self._address, buffers)

    @property
    def times(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """When each micro-batch [iteration, step, replica] of the latest run began, was fed, was
        computed and was kept, in seconds of `time.perf_counter`. The next run overwrites it."""
        return self._memory.times

    @property
    def seed(self) -> int:
        """What the seeds of all micro-batches are made from."""
        return int(self._memory.seed[0])

    @seed.setter
    def seed(self, value: int) -> None:
        self._memory.seed[0] = value % (1 << 64)

    @property
    def counters(self) -> list[int]:
        """How many micro-batches with seeds each replica has run."""
        return [int(value) for value in self._memory.counters]

    @counters.setter
    def counters(self, values: Sequence[int]) -> None:
        counters = self._memory.counters
        if len(values) != len(counters):
            raise StateError(
                f"{len(values)} counters for {len(counters)} replicas",
                fix="restore the counters of a loop with as many replicas",
            )
        counters[:] = values

    def set_constants(self, version: int) -> None:
        """Say that constants are as they were when this number was given before; 0: unknown."""
        self._memory.constants[0] = version

    @property
    def setups(self) -> int:
        """How often replicas have computed what is made of constants alone."""
        function = loop_library().pantile_loop_setups
        function.restype = ctypes.c_int64
        found: int = function(ctypes.c_void_p(self._address))
        return found

    def new_destinations(self) -> list[torch.Tensor]:
        """Uninitialised tensors for the results of a run."""
        return [_empty(*kind) for kind in self._result_kinds]

    def close(self) -> None:
        """Free the programs' buffers. The loop cannot run any more."""
        if not self._free.acquire(blocking=False):
            raise _busy()
        self._close()  # and never release it: there is nothing to run

    def run(
        self,
        arguments: Sequence[torch.Tensor],
        destinations: Sequence[torch.Tensor],
        first: int = 0,
        count: int | None = None,
    ) -> None:
        """Run `count` device iterations (all that are left) from iteration `first`.

        `arguments` and `destinations` are those of the whole call. If an error or Ctrl-C ends the
        run, state and destinations hold what was done until then.
        """
        if not self._free.acquire(False):
            raise self._unavailable()
        try:
            self._take(self._argument_checks, arguments, self._memory.argument_data)
            self._take(self._result_checks, destinations, self._memory.result_data)
            end = self._iterations if count is None else first + count
            if not 0 <= first <= end <= self._iterations:
                self._refuse_range(first, end)
            self._run_range(first, end)
        finally:
            self._free.release()

    def run_whole(self, pointers: Sequence[int]) -> list[torch.Tensor]:
        """All device iterations; the results. `pointers` leads to arguments that were checked."""
        if not self._free.acquire(False):
            raise self._unavailable()
        try:
            results = [_empty(*kind) for kind in self._result_kinds]
            self._memory.pointers[:] = [*pointers, *map(_data_ptr, results)]
            function, arguments = self._whole_call
            done = function(*arguments)
            if done != self._iterations:
                self._go_on(done, self._iterations)
            return results
        finally:
            self._free.release()

    def entry(self) -> LoopEntry:
        """How a caller in C++ runs all device iterations on arguments that it has checked."""
        function = ctypes.cast(loop_library().pantile_loop_run, ctypes.c_void_p)
        assert function.value is not None
        return LoopEntry(
            function.value,
            self._address,
            self._failure_at,
            self._iterations,
            ctypes.addressof(self._memory.pointers),
            int(self._memory.constants.ctypes.data),
        )

    def finish(self, done: int) -> None:
        """Finish a run that a caller in C++ began, and that came back after iteration `done`."""
        if not self._free.acquire(False):
            raise self._unavailable()
        try:
            self._go_on(done, self._iterations)
        finally:
            self._free.release()

    def _run_range(self, first: int, end: int) -> None:
        self._go_on(self._call(self._address, first, end, 1, self._failure_at), end)

    def _go_on(self, done: int, end: int) -> None:
        """Finish a run that came back after iteration `done`."""
        while done != end:
            if done < 0:
                raise self._failed()
            done = self._call(self._address, done, end, 0, self._failure_at)

    @property
    def takes_plain_arguments(self) -> bool:
        """Do all arguments have data? A null pointer is then a mistake."""
        return not any(0 in shape for _, shape, _ in self._argument_checks)

    def _take(
        self,
        checks: Sequence[_Check],
        tensors: Sequence[torch.Tensor],
        pointers: ctypes.Array[ctypes.c_void_p],
    ) -> None:
        """Check tensors and note where their data is. This is the host time of a call."""
        if len(tensors) != len(checks):
            self._refuse_count(checks, tensors)
        i = 0
        try:
            for i, (dtype, shape, lazy) in enumerate(checks):
                tensor = tensors[i]
                if not (
                    type(tensor) is Tensor
                    and tensor.dtype is dtype
                    and tensor.shape == shape
                    and tensor.is_cpu
                    and tensor.is_contiguous()
                    and not (lazy and (tensor.is_neg() or tensor.is_conj()))
                ):
                    self._refuse(checks, i, tensor)
                data = tensor.data_ptr()
                if not has_memory(tensor):
                    self._refuse(checks, i, tensor)
                pointers[i] = data
        except RuntimeError:  # of torch: a tensor without strides or storage, such as a sparse one
            self._refuse(checks, i, tensors[i])

    def _refuse_count(self, checks: Sequence[_Check], tensors: Sequence[torch.Tensor]) -> None:
        if checks is self._argument_checks:
            raise InputMismatch(
                f"{len(tensors)} arguments were given; the loop was made for {len(checks)}",
                fix="pass the arguments the model was compiled for",
            )
        raise ExecutionError(
            f"{len(tensors)} destinations were given; the loop has {len(checks)} results",
            fix="pass what new_destinations() gives",
        )

    def _refuse(self, checks: Sequence[_Check], index: int, tensor: Any) -> None:
        dtype, shape, _ = checks[index]
        want = f"a contiguous {dtype} tensor of shape {list(shape)} on the CPU"
        if checks is self._argument_checks:
            name = self._plan.arguments[index].name
            raise InputMismatch(
                f"argument {name!r} is {_described(tensor)}; the model was compiled for {want}",
                fix=f"convert it, for example with {name}.to({dtype}).contiguous(), or pass "
                "the shape the model was compiled for",
            )
        raise ExecutionError(
            f"the destination of result {self._plan.results[index].name!r} is "
            f"{_described(tensor)}; it must be {want}",
            fix="pass what new_destinations() gives",
        )

    def _refuse_range(self, first: int, end: int) -> None:
        raise ExecutionError(
            f"device iterations {first} to {end} were asked for; the loop has {self._iterations}",
            fix="keep first and first + count within deviceIterations",
        )

    def _failed(self) -> ExecutionError:
        failure = self._failure
        place = f"device iteration {failure.iteration}"
        if failure.step >= 0:
            place += f", accumulation step {failure.step}, replica {failure.replica}"
        elif failure.replica >= 0:
            place = f"the weight update of {place}"
        text = failure.message.decode(errors="replace").partition(_BACKTRACE)[0]
        return ExecutionError(
            f"the native program failed in {place}: {text}",
            fix='run with Options.engine("reference"), which names the op and your line',
        )

    def _unavailable(self) -> StateError:
        if self._close.alive:
            return _busy()
        return StateError("the device loop was closed", fix="make a new one")


def has_memory(tensor: torch.Tensor) -> bool:
    """Does the memory of a contiguous tensor hold all of it? It can be given back, in parts too."""
    end = tensor.storage_offset() * tensor.itemsize + tensor.nbytes
    return tensor.numel() == 0 or tensor.untyped_storage().nbytes() >= end


def _busy() -> StateError:
    return StateError(
        "the device loop is running in another thread",
        fix="let one thread at a time call a model, or give each thread its own",
    )


def _check_of(dtype: torch.dtype, shape: tuple[int, ...]) -> _Check:
    lazy = dtype.is_complex or (dtype.is_floating_point and prod(shape) == 1)
    return dtype, tuple(shape), lazy


def _kind_of(dtype: torch.dtype, shape: tuple[int, ...]) -> _Kind:
    return tuple(shape), torch.empty(shape, device="meta").stride(), dtype


def _prepared_call(
    address: int, iterations: int, failure: int
) -> tuple[Callable[..., int], tuple[Any, ...]]:
    """The call that runs everything: its function and arguments, converted once for all calls."""
    function = loop_library()["pantile_loop_run"]  # an object of its own, without `argtypes`
    function.restype = ctypes.c_int64
    pointer, number = ctypes.c_void_p.from_param, ctypes.c_int64.from_param
    flag = ctypes.c_int32.from_param(1)
    return function, (pointer(address), number(0), number(iterations), flag, pointer(failure))


def _described(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    if value.layout is not torch.strided:
        return f"a {value.layout} tensor"
    kind = "tensor" if type(value) is torch.Tensor else type(value).__name__
    notes = "" if value.is_contiguous() else f" with strides {list(value.stride())}"
    if value.is_neg() or value.is_conj():
        notes += " with a pending negation or conjugation"
    if value.is_cpu and type(value) is torch.Tensor and not has_memory(value):
        notes += " without data"
    return f"a {value.dtype} {kind} of shape {list(value.shape)} on {value.device}{notes}"


def _destroy(address: int, buffers: Sequence[torch.Tensor]) -> None:
    """Free the loop while the tensors it writes to are alive."""
    loop_library().pantile_loop_destroy(ctypes.c_void_p(address))
    del buffers


def _created(
    plan: Plan, memory: CallMemory, deadline: float
) -> tuple[Callable[..., int], int, list[torch.Tensor]]:
    """The function that runs, the address of the loop, and the tensors it works on."""
    library, failure = loop_library(), Failure()
    library.pantile_loop_create.restype = ctypes.c_void_p
    translation = Translation(plan, memory)
    address: int | None = None
    try:
        translated = translation.translated(deadline)
        address = library.pantile_loop_create(ctypes.byref(translated), ctypes.byref(failure))
    finally:
        if address is None:
            translation.release_handles()
    if address is None:
        raise broken_plan(failure.message.decode(errors="replace"))
    run = library.pantile_loop_run
    numbers = (ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
    run.argtypes, run.restype = [ctypes.c_void_p, *numbers, ctypes.c_void_p], ctypes.c_int64
    return run, address, translation.buffers
