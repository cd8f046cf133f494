"""A plan of Python objects as the structures C++ reads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from pantile.runtime.native.loop_library import loop_library
from pantile.runtime.native.plan import (
    Accumulator,
    Argument,
    ArgumentSpec,
    Input,
    Plan,
    ResultSpec,
    Seeds,
    State,
    Weight,
)
from pantile.runtime.native.structures import (
    SUM_CODES,
    InputCode,
    InputPlan,
    LoopPlan,
    ProgramEntry,
    SumPlan,
    ViewPlan,
    int64_array,
)


@dataclass(frozen=True, eq=False)
class CallMemory:
    """What Python and the loop both read and write."""

    #: Where the arguments are, then where the results are.
    pointers: ctypes.Array[ctypes.c_void_p]
    argument_data: ctypes.Array[ctypes.c_void_p]
    result_data: ctypes.Array[ctypes.c_void_p]
    times: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    counters: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    seed: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]
    #: Another number when a constant has changed; 0: unknown.
    constants: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]

    @staticmethod
    def of(plan: Plan) -> CallMemory:
        """As large as the plan needs it."""
        arguments, results = len(plan.arguments), len(plan.results)
        pointers = (ctypes.c_void_p * (arguments + results))()
        start = arguments * ctypes.sizeof(ctypes.c_void_p)
        return CallMemory(
            pointers,
            (ctypes.c_void_p * arguments).from_buffer(pointers),
            (ctypes.c_void_p * results).from_buffer(pointers, start),
            np.zeros((*plan.schedule.parts.shape, 4), np.float64),
            np.zeros(plan.schedule.replicas, np.int64),
            np.zeros(1, np.uint64),
            np.zeros(1, np.uint64),
        )


class Translation:
    """The translation of one plan, and what must live as long as C++ reads it.

    `buffers` are the tensors the loop works on. `handles` are references to tensors that the loop
    takes over when it is made.
    """

    def __init__(self, plan: Plan, memory: CallMemory) -> None:
        self._plan, self._memory = plan, memory
        self._library = loop_library()
        self._keep: list[Any] = []
        self.handles: list[int] = []
        self.buffers: list[torch.Tensor] = []

    def release_handles(self) -> None:
        """Give the handles back: no loop was made."""
        for handle in self.handles:
            self._library.pantile_loop_release(ctypes.c_void_p(handle))
        self.handles.clear()

    def translated(self, deadline: float) -> LoopPlan:
        """The plan for C++; valid as long as this object."""
        plan, memory = self._plan, self._memory
        iterations, accumulation, replicas = plan.schedule.parts.shape
        inputs = [self._input(given, r) for r in range(replicas) for given in plan.inputs]
        updates = [self._handle(tensor) for tensor in plan.update_inputs]
        sums = [s for given in plan.inputs if isinstance(given, Accumulator) for s in _sums(given)]
        self._keep += sums
        return LoopPlan(
            body=plan.body.entry(),
            update=plan.update.entry() if plan.update else ProgramEntry(),
            accumulation=accumulation,
            replicas=replicas,
            first_replica=plan.first_replica,
            micro_batches=iterations * accumulation * replicas,
            workers=plan.threads.workers,
            threads=plan.threads.each,
            update_threads=plan.threads.update,
            inputs=len(plan.inputs),
            arguments=len(plan.arguments),
            outputs=plan.body.outputs,
            results=len(plan.results),
            update_inputs=len(updates),
            update_outputs=plan.update.outputs if plan.update else 0,
            sums=len(sums),
            input=(InputPlan * len(inputs))(*inputs),
            argument=self._views(plan.arguments),
            result=self._views(plan.results),
            update_input=(ctypes.c_void_p * len(updates))(*updates),
            sum=(SumPlan * len(sums))(*sums),
            parts=self._table(plan.schedule.parts, np.int64),
            slots=self._table(plan.schedule.slots, np.int64),
            wanted=self._table(plan.schedule.wanted, np.uint8),
            deadline=deadline,
            writes=plan.writes,
            argument_data=memory.argument_data,
            result_data=memory.result_data,
            times=memory.times.ctypes.data,
            counters=memory.counters.ctypes.data,
            seed=memory.seed.ctypes.data,
            constants=memory.constants.ctypes.data,
        )

    def _input(self, given: Input, replica: int) -> InputPlan:
        match given:
            case State(tensors):
                tensor = tensors[replica if len(tensors) > 1 else 0]
                return self._buffer(InputCode.STATE, tensor)
            case Argument(index):
                chosen = index if isinstance(index, int) else index[replica]
                return InputPlan(kind=InputCode.ARGUMENT, argument=chosen)
            case Accumulator(tensors):
                return self._buffer(InputCode.ACCUMULATOR, tensors[replica])
            case Seeds(count):
                return self._buffer(InputCode.SEEDS, torch.zeros(count, dtype=torch.int64))
            case Weight.OLD:
                return self._buffer(InputCode.OLD_WEIGHT, torch.zeros((), dtype=torch.float64))
            case Weight.NEW:
                return self._buffer(InputCode.NEW_WEIGHT, torch.zeros((), dtype=torch.float64))

    def _buffer(self, kind: InputCode, tensor: torch.Tensor) -> InputPlan:
        self.buffers.append(tensor)
        return InputPlan(
            kind=kind, handle=self._handle(tensor), data=tensor.data_ptr(), bytes=tensor.nbytes
        )

    def _handle(self, tensor: torch.Tensor) -> int:
        [capsule] = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([tensor])
        self.handles.append(_pointer(capsule))
        return self.handles[-1]

    def _views(
        self, specs: Sequence[ArgumentSpec] | Sequence[ResultSpec]
    ) -> ctypes.Array[ViewPlan]:
        views = [self._view(spec) for spec in specs]
        self._keep += views  # their sizes and strides, too
        return (ViewPlan * len(views))(*views)

    def _view(self, spec: ArgumentSpec | ResultSpec) -> ViewPlan:
        shape = spec.part_shape if isinstance(spec, ArgumentSpec) else spec.shape
        strides = torch.empty(shape, device="meta").stride()
        by_torch = isinstance(spec, ResultSpec) and (spec.by_torch or spec.dtype.is_complex)
        return ViewPlan(
            dims=len(shape),
            sizes=int64_array(tuple(shape)),
            strides=int64_array(strides),
            bytes=prod(shape) * spec.dtype.itemsize,
            dtype=self._dtype_number(spec.dtype),
            by_torch=by_torch,
        )

    def _dtype_number(self, dtype: torch.dtype) -> int:
        example = torch.empty(0, dtype=dtype)
        [capsule] = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors([example])
        handle = ctypes.c_void_p(_pointer(capsule))
        number: int = self._library.pantile_loop_dtype(handle)
        self._library.pantile_loop_release(handle)
        return number

    def _table(self, values: np.ndarray[Any, Any], dtype: type[np.generic]) -> int:
        table = np.ascontiguousarray(values, dtype)
        self._keep.append(table)
        return int(table.ctypes.data)


def _sums(given: Accumulator) -> list[SumPlan]:
    first = given.tensors[0]
    groups = given.groups or [0] * len(given.tensors)
    rows = [first] if given.reduced is None else list(given.reduced)
    return [
        _sum(row, [t for t, g in zip(given.tensors, groups, strict=True) if g == number])
        for number, row in enumerate(rows)
        if given.reduced is not None or len(given.tensors) > 1
    ]


def _sum(target: torch.Tensor, sources: Sequence[torch.Tensor]) -> SumPlan:
    kind, width = SUM_CODES[target.dtype]
    pointers = [source.data_ptr() for source in sources]
    return SumPlan(
        elements=target.numel() * width,
        target=target.data_ptr(),
        sources=(ctypes.c_void_p * len(pointers))(*pointers),
        count=len(pointers),
        kind=kind,
    )


def _pointer(capsule: object) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address: int = get(capsule, None)
    return address
