"""Operands of kernels that need plain memory: strided, from where they lie; else copied first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from pantile.lowering.kernels.index import Affine, Axis, Space, index_of
from pantile.lowering.kernels.memory import Buffer
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.rules.elementwise import copy
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import cpp, dtype_of, shape_of
from pantile.lowering.kernels.writer import Writer


@dataclass(frozen=True)
class Operand:
    """buffer[offset + sum of stride * index]; `strides` are those of the last dims."""

    buffer: Buffer
    strides: tuple[int, ...]
    constant: int
    batch: Affine
    """The part of the address that depends on the first dim, if that was asked for."""
    space: Space

    @property
    def pointer(self) -> str:
        """To the first element."""
        return f"{self.buffer.name} + {self.constant}" if self.constant else self.buffer.name


def strided(
    writer: Writer,
    node: fx.Node,
    axes: Sequence[Axis],
    *,
    free: int = 0,
    order: Sequence[int] = (),
    as_it_lies: bool = True,
) -> Operand:
    """An operand with one stride for each dim but the first `free` ones, which may be anything.

    If there is none, it is copied, its dims in an order.
    """
    found = _as_it_lies(writer, node, axes, free) if as_it_lies else None
    if found is not None:
        return found
    shape = shape_of(node)
    buffer = writer.temporary(shape, order or None, cpp(dtype_of(node)))
    copy(writer, node, buffer, "copy of")
    strides = buffer.strides
    batch = Affine()
    for axis, stride in zip(axes[:free], strides, strict=False):
        batch += Affine.of(axis) * stride
    return Operand(buffer, strides[free:], 0, batch, Space())


def _as_it_lies(writer: Writer, node: fx.Node, axes: Sequence[Axis], free: int) -> Operand | None:
    trace = Trace(writer.plan)
    try:
        trace.value(node, index_of(axes))
    except Refused:
        return None
    if len(trace.statements) != 1 or len(trace.reads) != 1 or trace.reads[0].whole:
        return None
    if any(axis in trace.space.splits for axis in axes[free:]):
        return None
    (address,) = trace.statements[0].sums
    address = trace.space.resolve(address)
    (buffer,) = trace.used.values()
    strides = tuple(address.factor(axis) for axis in axes[free:])
    own = {axis: address.factor(axis) for axis in axes[free:]}
    batch = Affine(0, {axis: f for axis, f in address.terms.items() if axis not in own})
    return Operand(buffer, strides, address.constant, batch, trace.space)
