"""Writes kernels: gives values memory, and collects the text of functions.

A kernel is a C++ function of (t, T): what thread t of T does. Its buffers are parameters, so that
equal kernels of different layers are one function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx
from torch._prims_common import is_non_overlapping_and_dense_or_false

from pantile.lowering.kernels.expressions import storage_of
from pantile.lowering.kernels.memory import Buffer, Place, Pointer, dense_strides, extent
from pantile.lowering.kernels.outside import OutsideCall, results_of
from pantile.lowering.kernels.plan import Kernel, Plan, count_convolutions
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.types import CPP, MOST_ELEMENTS, dtype_of, shape_of, stored

CHANNELS_LAST = (0, 2, 3, 1)


def result_strides(value: torch.Tensor) -> tuple[int, ...]:
    """How a result lies in memory: as torch has it, but without the gaps of a slice."""
    if is_non_overlapping_and_dense_or_false(value):
        return tuple(int(stride) for stride in value.stride())
    return dense_strides(value.shape)


@dataclass(frozen=True)
class View:
    """Memory as an operator of torch's sees it."""

    pointer: Pointer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Call:
    """An operator that is called outside."""

    what: OutsideCall
    operands: tuple[fx.Node | View, ...]
    """Memory, or what is a tensor already: inputs and results of other calls."""
    first: int
    """The number of its first result; the others follow."""
    results: int


@dataclass(frozen=True)
class Function:
    """One call of a kernel."""

    text: str
    used: tuple[Pointer, ...]
    note: str
    can_fail: bool
    over: tuple[tuple[Buffer, Buffer], ...] = ()
    """Pairs of buffers: the first may be written over the second, if that is not needed later."""
    writes: frozenset[Buffer] = frozenset()
    """The buffers that may be written."""
    call: Call | None = None
    """What is called outside; then there is no text, and the threads wait."""

    @property
    def buffers(self) -> list[Buffer]:
        """All memory it uses."""
        return [pointer.buffer.root for pointer in self.used]


@dataclass
class Writer:
    """The kernels written so far."""

    plan: Plan
    functions: list[Function] = field(default_factory=list)
    scratch: list[str] = field(default_factory=list)
    """How many floats of its own a thread needs: C++ constants, the largest counts."""
    buffers: list[Buffer] = field(default_factory=list)
    copied: dict[fx.Node, tuple[Buffer, int]] = field(default_factory=dict)
    """Values that were copied to lie in plain strides, and how many kernels there were then."""
    constant: set[Buffer] = field(default_factory=set)
    """What is the same in every run, as far as is known: inputs, and what is made of them only."""
    packed: dict[tuple[Pointer, int, str], Buffer] = field(default_factory=dict)
    """Operands of products that were packed, by the place, its writes before and the product."""
    made: dict[fx.Node, int] = field(default_factory=dict)
    """Results of operators that are called outside, by their numbers."""

    def __post_init__(self) -> None:
        self._touched: set[Buffer] = set()
        self.convolutions = count_convolutions(self.plan.nodes)
        self.images = self.convolutions > 0
        self.returned = {storage_of(node): i for i, node in enumerate(self.plan.outputs)}
        for number, node in enumerate(self.plan.inputs):
            value = node.meta["val"]
            if value.dtype not in CPP:
                continue  # only what is called outside reads it
            strides = tuple(int(stride) for stride in value.stride())
            self.plan.buffers[node] = self._new(
                stored(value.dtype), shape_of(node), strides, Place.INPUT, number
            )

    def _new(
        self,
        cpp_type: str,
        shape: Sequence[int],
        strides: Sequence[int],
        place: Place = Place.ARENA,
        number: int = 0,
    ) -> Buffer:
        size = extent(shape, strides)
        if size > MOST_ELEMENTS:
            raise Refused(f"a tensor of {size} elements")
        name = f"b{len(self.buffers)}"
        buffer = Buffer(name, cpp_type, tuple(shape), tuple(strides), place, number, size)
        self.buffers.append(buffer)
        return buffer

    def temporary(
        self, shape: Sequence[int], order: Sequence[int] | None = None, cpp_type: str = "float"
    ) -> Buffer:
        """Memory that is no value of the graph: packed weights and the like."""
        return self._new(cpp_type, shape, dense_strides(shape, order))

    def allocate(self, node: fx.Node, order: Sequence[int] | None = None) -> Buffer:
        """Memory for a value; `order` names its dims from the outermost to the innermost."""
        if node in self.plan.buffers:
            return self.plan.buffers[node]
        self.plan.buffers[node] = buffer = self._allocated(node, order)
        return buffer

    def _allocated(self, node: fx.Node, order: Sequence[int] | None) -> Buffer:
        if node in self.returned:
            return self.output(node, self.returned[node])
        over = self.plan.may_place_over(node)
        if over is not None:
            return self.plan.buffers[over]
        shape = shape_of(node)
        part = self._part_of(node)
        if part is not None:
            return part
        if order is None and self.images and len(shape) == 4:
            order = CHANNELS_LAST
        return self._new(stored(dtype_of(node)), shape, dense_strides(shape, order))

    def output(self, node: fx.Node, number: int) -> Buffer:
        """The memory of a result, laid out as the caller expects it."""
        value = self.plan.outputs[number].meta["val"]
        return self._new(
            stored(value.dtype), shape_of(node), result_strides(value), Place.OUTPUT, number
        )

    def _part_of(self, node: fx.Node) -> Buffer | None:
        """Memory inside that of the concatenation a value is a piece of: nothing to copy then."""
        found = self.plan.pieces.get(node)
        if found is None:
            return None
        whole, dim, start, new = found
        parent = self.allocate(whole)
        strides = [stride for d, stride in enumerate(parent.strides) if d not in new]
        name = f"b{len(self.buffers)}"
        first = start * parent.strides[dim]
        part = Buffer(name, parent.cpp, shape_of(node), tuple(strides), parent.place, parent.number)
        part.within, part.start, part.size = parent, first, extent(part.shape, part.strides)
        self.buffers.append(part)
        return part

    def member_order(self, kernel: Kernel, node: fx.Node, order: Sequence[int]) -> list[int]:
        """The order of a member's dims, like the anchor's."""
        if node is kernel.anchor:
            return list(order)
        radix = kernel.maps[node]
        dims = [dim for part in order for dim in radix[part]]
        return [dim for dim in range(len(shape_of(node))) if dim not in dims] + dims

    def function(
        self,
        text: str,
        used: Mapping[str, Pointer] | Iterable[Pointer],
        note: str,
        over: Sequence[tuple[Buffer, Buffer]] = (),
        writes: Iterable[Buffer] | None = None,
    ) -> None:
        """A kernel, to be run after the ones before. Without `writes` it may write all it uses."""
        pointers = tuple(used.values() if isinstance(used, Mapping) else used)
        homes = (p.buffer for p in pointers) if writes is None else writes
        roots = frozenset(buffer.root for buffer in homes)
        made = Function(text, pointers, note, "failed" in text, tuple(over), roots)
        self.functions.append(made)
        self._note_constants(made)

    def make(self, node: fx.Node) -> list[Buffer]:
        """Memory of torch's for a result of an operator called outside, if kernels can read it."""
        number = self.made[node] = len(self.made)
        value = node.meta["val"]
        if value.dtype not in CPP or not value.numel():
            return []
        strides = tuple(int(stride) for stride in value.stride())
        buffer = self._new(stored(value.dtype), shape_of(node), strides, Place.MADE, number)
        self.plan.buffers[node] = buffer
        return [buffer]

    def call(self, what: OutsideCall, operands: Sequence[fx.Node | View], first: fx.Node) -> None:
        """A call of an operator outside, after the kernels before."""
        buffers = [buffer for result in results_of(first) for buffer in self.make(result)]
        read = [operand.pointer for operand in operands if isinstance(operand, View)]
        used = (*read, *map(Pointer, buffers))
        count = len(what.places)
        made = Call(what, tuple(operands), len(self.made) - count, count)
        note = f"call of {what.node.name}"
        self.functions.append(
            Function("", used, note, can_fail=True, writes=frozenset(buffers), call=made)
        )
        self._note_constants(self.functions[-1])

    def _note_constants(self, function: Function) -> None:
        """Follow what is made of constants; `setup.py` decides when all functions are written."""
        buffers = set(function.buffers)
        new = {b for b in buffers - self._touched if b.place is Place.ARENA}
        self._touched |= buffers
        if buffers <= self.constant | new:
            self.constant |= new
        else:
            self.constant -= {b for b in function.writes if b.place is Place.ARENA}

    @property
    def constant_inputs(self) -> set[Buffer]:
        """The inputs that are the same in every run."""
        return {buffer for buffer in self.constant if buffer.place is Place.INPUT}

    def is_constant(self, pointer: Pointer) -> bool:
        """Does it point to what no run changes?"""
        return pointer.buffer.root in self.constant

    def writes_to(self, pointer: Pointer) -> int:
        """How many kernels before have written to what a pointer leads to."""
        return sum(pointer.buffer.root in function.writes for function in self.functions)

    def need_scratch(self, floats: str) -> None:
        """A thread needs so many floats of its own."""
        self.scratch.append(floats)
