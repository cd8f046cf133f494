"""Round float16 results up or down at random, in proportion to their distance.

    %y = add(%a, %b)              %s = _to_copy(%a, float32);  %t = _to_copy(%b, float32)
    -> float16[2]          ->     %w = add(%s, %t)                       the result, not yet rounded
                                  %u = rand([2])
                                  %q = %w / ulp;  %n = floor(%q)
                                  %r = (%n + (%u < %q - %n)) * ulp       one of its two neighbours
                                  %y = _to_copy(%r, float16)

A weight of 1 that is to lose 0.0001 at each of a thousand steps keeps its value when each result is
rounded to the nearest float16 number, the next one being 0.0005 away. Rounded so, it loses what it
should on average.

Only float16 is rounded so, and what is exact already (views, relu, where) stays as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from pantile.passes.formula import Formulas
from pantile.passes.half_in_single import half_in_single
from pantile.passes.node_writer import NodeWriter
from pantile.program.nodes import erase
from pantile.program.program import Program, copy_graph

aten = torch.ops.aten

_HALF, _SINGLE = torch.float16, torch.float32
_EXPONENT = 0x7F800000
_LARGEST = 65504.0
_INFINITE_FROM = 65520.0
"""What is at least this large becomes an infinity in float16."""

_EXACT = """
    _to_copy abs alias ceil clamp clamp_max clamp_min clone copy detach fill floor hardtanh
    lift_fresh_copy masked_fill maximum minimum neg ones_like relu round sign threshold
    threshold_backward trunc where zeros_like
"""
_EXACT_OPS = frozenset(f"aten::{name}" for name in _EXACT.split())


def stochastic_rounding(program: Program) -> Program:
    """The same program, with its float16 results rounded at random."""
    graph, _ = copy_graph(half_in_single(program).graph)
    writer = NodeWriter(graph)
    formulas = Formulas(writer)
    for node in list(graph.nodes):
        if _is_rounded_by_kernel(node):
            with writer.replacing(node):
                _widen(node, formulas)
    for node in list(graph.nodes):
        if _is_cast_to_half(node):
            with writer.replacing(node):
                rounded = _rounded(node.args[0], writer)
                node.args = (rounded, *node.args[1:])
    graph.lint()
    return program.replace(graph=graph)


def _is_rounded_by_kernel(node: fx.Node) -> bool:
    """Does an elementwise kernel compute this in float32, and round it?"""
    target = node.target
    return (
        isinstance(target, OpOverload)
        and torch.Tag.pointwise in target.tags
        and target._schema.name not in _EXACT_OPS
        and _dtype(node) is _HALF
    )


def _dtype(node: Any) -> torch.dtype | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None


def _widen(node: fx.Node, formulas: Formulas) -> None:
    def widened(value: Any) -> Any:
        if isinstance(value, fx.Node) and _dtype(value) is _HALF:
            return formulas.cast(value, _SINGLE)
        return _SINGLE if value is _HALF else value

    given: Any = (node.args, node.kwargs)
    args, kwargs = fx.node.map_aggregate(given, widened)
    wide = formulas.writer.call(node.target, *args, **kwargs)
    if _dtype(wide) is _HALF:  # a half that came from nowhere: nothing to widen
        erase(wide)
        return
    node.replace_all_uses_with(formulas.writer.call(aten._to_copy.default, wide, dtype=_HALF))
    erase(node)


def _is_cast_to_half(node: fx.Node) -> bool:
    return (
        node.target is aten._to_copy.default
        and _dtype(node) is _HALF
        and _dtype(node.args[0]) is _SINGLE
    )


def _rounded(value: Any, writer: NodeWriter) -> fx.Node:
    """A float32 tensor rounded to one of the two float16 numbers next to each element."""
    call = writer.call
    bits = call(aten.view.dtype, value, torch.int32)
    power = call(aten.view.dtype, call(aten.bitwise_and.Scalar, bits, _EXPONENT), _SINGLE)
    # Below 2**-14 float16 numbers are equally spaced.
    ulp = call(aten.mul.Scalar, call(aten.clamp.default, power, 2.0**-14, 2.0**15), 2.0**-10)
    exact = call(aten.div.Tensor, value, ulp)
    below = call(aten.floor.default, exact)
    rest = call(aten.sub.Tensor, exact, below)
    drawn = call(aten.rand.default, list(value.meta["val"].shape), dtype=_SINGLE)
    up = call(aten._to_copy.default, call(aten.lt.Tensor, drawn, rest), dtype=_SINGLE)
    chosen = call(aten.mul.Tensor, call(aten.add.Tensor, below, up), ulp)
    finite = call(aten.clamp.default, chosen, -_LARGEST, _LARGEST)
    fits = call(aten.lt.Scalar, call(aten.abs.default, value), _INFINITE_FROM)
    return call(aten.where.self, fits, finite, value)
