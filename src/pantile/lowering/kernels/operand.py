"""Operands of kernels that need plain memory: strided, from where they lie; else copied first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from pantile.lowering.kernels.index import Affine, Axis, Space, index_of
from pantile.lowering.kernels.memory import Pointer, dense_strides
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.rules.elementwise import copy
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import cpp, dtype_of, shape_of, stored
from pantile.lowering.kernels.writer import Writer

aten = torch.ops.aten

_JUST_NOW = 8
"""A copy that is older by more kernels is not kept, unless it is one of a constant."""


@dataclass(frozen=True)
class Operand:
    """pointer[sum of stride * index]; `strides` are those of the last dims."""

    pointer: Pointer
    strides: tuple[int, ...]
    batch: Affine
    """The part of the address that depends on the first dim, if that was asked for."""
    space: Space

    def is_dense(self, shape: Sequence[int]) -> bool:
        """Does one element lie behind the other? Dims of one step have no stride that matters."""
        wanted = zip(shape, self.strides, dense_strides(shape), strict=True)
        return all(size == 1 or have == want for size, have, want in wanted)


def strided(
    writer: Writer,
    node: fx.Node,
    axes: Sequence[Axis],
    *,
    free: int = 0,
    order: Sequence[int] = (),
    as_it_lies: bool = True,
    wide: bool = False,
) -> Operand:
    """An operand with one stride for each dim but the first `free` ones, which may be anything.

    If there is none, it is copied, its dims in an order. A `wide` one lies in memory in the type
    that it is computed in: numbers of 16 bits are copied as floats.
    """
    found = _as_it_lies(writer, node, axes, free) if as_it_lies else None
    kind = cpp(dtype_of(node)) if wide else stored(dtype_of(node))
    if found is not None and (not wide or found.pointer.buffer.cpp == kind):
        return found
    if not free and not order:
        again = _copied_just_now(writer, node)
        if again is not None:
            return again
    shape = shape_of(node)
    buffer = writer.temporary(shape, order or None, kind)
    copy(writer, node, buffer, "copy of")
    writer.copied[node] = buffer, len(writer.functions)
    strides = buffer.strides
    batch = Affine()
    for axis, stride in zip(axes[:free], strides, strict=False):
        batch += Affine.of(axis) * stride
    return Operand(Pointer(buffer), strides[free:], batch, Space())


def _copied_just_now(writer: Writer, node: fx.Node) -> Operand | None:
    """The copy that another kernel needed of the same value, or of its transpose."""
    source = node
    if node.target is aten.permute.default and node.args[1] == [1, 0]:
        source = node.args[0]  # type: ignore[assignment]
    buffer, when = writer.copied.get(source, (None, 0))
    if buffer is None:
        return None
    is_old = len(writer.functions) - when > _JUST_NOW
    if is_old and not writer.is_constant(Pointer(buffer)):
        return None
    strides = buffer.strides if source is node else buffer.strides[::-1]
    return Operand(Pointer(buffer), strides, Affine(), Space())


def _as_it_lies(writer: Writer, node: fx.Node, axes: Sequence[Axis], free: int) -> Operand | None:
    trace = Trace(writer.plan)
    try:
        trace.value(node, index_of(axes))
    except Refused:
        return None
    if len(trace.statements) != 1 or len(trace.reads) != 1 or trace.reads[0].whole:
        return None
    (address,) = trace.statements[0].sums
    address = trace.space.resolve(address)
    strides = [stride_of(trace.space, address, axis) for axis in axes[free:]]
    if any(stride is None for stride in strides):
        return None
    (pointer,) = trace.used.values()
    own = {leaf for axis in axes[free:] for leaf in trace.space.leaves(axis)}
    batch = Affine(0, {axis: f for axis, f in address.terms.items() if axis not in own})
    found = tuple(stride for stride in strides if stride is not None)
    return Operand(pointer, found, batch, trace.space)


def stride_of(space: Space, address: Affine, axis: Axis) -> int | None:
    """By how much an address grows with an axis, also if that was split; None if not evenly."""
    leaves = [leaf for leaf in space.leaves(axis) if leaf.size > 1]
    if not leaves:
        return 0
    stride = address.factor(leaves[-1])
    step = stride
    for leaf in reversed(leaves):
        if address.factor(leaf) != step:
            return None
        step *= leaf.size
    return stride
