"""All rules by which the value of a node at an index is written down.

views       rewrite the index               permute, reshape, expand, slice, …
choices     depend on the index             one-hot scatter, iota, …
lookups     an index that is computed       gather, embedding, …
pointwise   compute                         see `pointwise`
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels.index import Affine, Index
from pantile.lowering.kernels.pointwise import POINTWISE, Rule
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.trace import Trace, broadcast
from pantile.lowering.kernels.types import cpp, dtype_of, literal, shape_of

aten = torch.ops.aten
prims = torch.ops.prims


def _same(trace: Trace, node: fx.Node, index: Index) -> str:
    return trace.value(node.args[0], index)  # type: ignore[arg-type]


def _reshape(trace: Trace, node: fx.Node, index: Index) -> str:
    source = _source(node)
    return trace.value(source, trace.space.reshape(index, shape_of(node), shape_of(source)))


def _permute(trace: Trace, node: fx.Node, index: Index) -> str:
    dims: Any = node.args[1]
    inner = [Affine()] * len(index)
    for place, dim in enumerate(dims):
        inner[dim % len(index)] = index[place]
    return trace.value(_source(node), inner)


def _transpose(trace: Trace, node: fx.Node, index: Index) -> str:
    inner = list(index)
    a, b = (0, 1) if node.target is aten.t.default else node.args[1:3]
    if len(inner) > 1:
        inner[a], inner[b] = inner[b], inner[a]  # type: ignore[index]
    return trace.value(_source(node), inner)


def _expand(trace: Trace, node: fx.Node, index: Index) -> str:
    source = _source(node)
    return trace.value(source, broadcast(index, shape_of(source)))


def _slice(trace: Trace, node: fx.Node, index: Index) -> str:
    source = _source(node)
    named = dict(zip(("dim", "start", "end", "step"), node.args[1:], strict=False))
    named |= dict(node.kwargs)
    dim: Any = named.get("dim", 0)
    start: Any = named.get("start") or 0
    step: Any = named.get("step", 1)
    size = shape_of(source)[dim]
    start = max(0, min(size, start + size if start < 0 else start))
    inner = list(index)
    inner[dim] = inner[dim] * step + start
    return trace.value(source, inner)


def _select(trace: Trace, node: fx.Node, index: Index) -> str:
    source = _source(node)
    dim: Any = node.args[1]
    place: Any = node.args[2]
    shape = shape_of(source)
    dim %= len(shape)
    return trace.value(source, (*index[:dim], Affine(place % shape[dim]), *index[dim:]))


def _piece(trace: Trace, node: fx.Node, index: Index) -> str:
    """One of the results of unbind or split."""
    several, number = node.args
    assert isinstance(several, fx.Node) and isinstance(number, int)
    source = _source(several)
    shape = shape_of(source)
    named = dict(zip(("sizes", "dim"), several.args[1:], strict=False)) | dict(several.kwargs)
    if several.target is aten.unbind.int:
        dim: Any = several.args[1] if len(several.args) > 1 else several.kwargs.get("dim", 0)
        dim %= len(shape)
        return trace.value(source, (*index[:dim], Affine(number), *index[dim:]))
    if several.target in (aten.split.Tensor, aten.split_with_sizes.default):
        sizes: Any = named.get("sizes", named.get("split_size", named.get("split_sizes")))
        dim = named.get("dim", 0)
        dim %= len(shape)
        start = number * sizes if isinstance(sizes, int) else sum(sizes[:number])
        inner = list(index)
        inner[dim] += start
        return trace.value(source, inner)
    raise Refused(f"no rule for {several.target}")


def _as_strided(trace: Trace, node: fx.Node, index: Index) -> str:
    source = _source(node)
    have, want = source.meta["val"], node.meta["val"]
    if tuple(have.shape) != tuple(want.shape) or (
        have.numel() > 1 and tuple(have.stride()) != tuple(want.stride())
    ):
        raise Refused("as_strided that is no alias")
    return trace.value(source, index)


def _full(trace: Trace, node: fx.Node, index: Index) -> str:
    place = 1 if node.target in (aten.full.default, aten.full_like.default) else 0
    value: Any = node.args[place]
    if isinstance(value, fx.Node):
        raise Refused("full of a tensor")
    return literal(value, dtype_of(node))


def _zero(trace: Trace, node: fx.Node, index: Index) -> str:
    return literal(0, dtype_of(node))


def _iota(trace: Trace, node: fx.Node, index: Index) -> str:
    start, step = node.kwargs.get("start", 0), node.kwargs.get("step", 1)
    assert isinstance(start, int) and isinstance(step, int)
    dtype = dtype_of(node)
    return trace.state(cpp(dtype), f"({cpp(dtype)})({{0}})", (), [index[0] * step + start])


def _gather(trace: Trace, node: fx.Node, index: Index) -> str:
    source, dim, places = node.args[:3]
    assert isinstance(source, fx.Node) and isinstance(dim, int) and isinstance(places, fx.Node)
    place = trace.value(places, index)
    dim %= len(index)
    return _lookup(trace, source, index, dim, place)


def _embedding(trace: Trace, node: fx.Node, index: Index) -> str:
    source, places = node.args[:2]
    assert isinstance(source, fx.Node) and isinstance(places, fx.Node)
    place = trace.value(places, index[:-1])
    return _lookup(trace, source, (Affine(), index[-1]), 0, place)


def _index(trace: Trace, node: fx.Node, index: Index) -> str:
    source, places = node.args[:2]
    assert isinstance(source, fx.Node) and isinstance(places, (list, tuple))
    dims = [dim for dim, place in enumerate(places) if place is not None]
    if len(dims) != 1:
        raise Refused("indexing by several tensors at once")
    (dim,) = dims
    where: Any = places[dim]
    if dtype_of(where) is torch.bool:
        raise Refused("indexing by a mask")
    rank = len(shape_of(where))
    place = trace.value(where, index[dim : dim + rank])
    inner = (*index[:dim], Affine(), *index[dim + rank :])
    return _lookup(trace, source, inner, dim, place)


def _lookup(trace: Trace, source: fx.Node, index: Index, dim: int, place: str) -> str:
    source = storage_of(source)
    size = shape_of(source)[dim]
    wrapped = trace.state("i64", f"bounded({place}, {size}, failed)", [place])
    return trace.load_at(source, index, dim, wrapped)


def storage_of(node: fx.Node) -> fx.Node:
    """The value behind copies of it."""
    while node.op == "call_function" and node.target in ALIASES:
        node = _source(node)
    return node


def _scatter_value(trace: Trace, node: fx.Node, index: Index) -> str:
    source, dim, places, value = node.args[:4]
    assert isinstance(dim, int) and isinstance(places, fx.Node)
    dim %= len(index)
    shape, rows = shape_of(node), shape_of(places)
    if rows != tuple(1 if d == dim else size for d, size in enumerate(shape)):
        raise Refused("a scatter that is not one element a row")
    dtype = dtype_of(node)
    place = trace.value(places, [Affine() if d == dim else part for d, part in enumerate(index)])
    old = trace.operand(source, index, dtype)
    new = trace.operand(value, (), dtype)
    text = f"(i64)({{0}}) == {place} ? {new} : {old}"
    return trace.state(cpp(dtype), text, [place, old, new], [index[dim]])


def _select_scatter(trace: Trace, node: fx.Node, index: Index) -> str:
    source, piece, dim, place = node.args[:4]
    assert isinstance(dim, int) and isinstance(place, int) and isinstance(piece, fx.Node)
    dim %= len(index)
    place %= shape_of(node)[dim]
    dtype = dtype_of(node)
    old = trace.operand(source, index, dtype)
    new = trace.value(piece, (*index[:dim], *index[dim + 1 :]))
    text = f"({{0}}) == {place} ? {new} : {old}"
    return trace.state(cpp(dtype), text, [old, new], [index[dim]])


def _source(node: fx.Node) -> fx.Node:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source


ALIASES = frozenset(
    {aten.alias.default, aten.detach.default, aten.clone.default, aten.contiguous.default}
)

VIEWS: dict[Any, Rule] = {
    **dict.fromkeys(ALIASES, _same),
    aten.view.default: _reshape,
    aten.reshape.default: _reshape,
    aten._unsafe_view.default: _reshape,
    aten.unsqueeze.default: _reshape,
    aten.squeeze.dim: _reshape,
    aten.squeeze.dims: _reshape,
    aten.squeeze.default: _reshape,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.t.default: _transpose,
    aten.expand.default: _expand,
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.as_strided.default: _as_strided,
    operator.getitem: _piece,
}
"""Views: the index is rewritten, nothing is computed."""

RULES: dict[Any, Rule] = {
    **POINTWISE,
    **VIEWS,
    aten.full.default: _full,
    aten.full_like.default: _full,
    aten.scalar_tensor.default: _full,
    aten.empty.memory_format: _zero,
    prims.iota.default: _iota,
    aten.gather.default: _gather,
    aten.embedding.default: _embedding,
    aten.index.Tensor: _index,
    aten._unsafe_index.Tensor: _index,
    aten.scatter.value: _scatter_value,
    aten.select_scatter.default: _select_scatter,
}

LOOKUPS = frozenset(
    {aten.gather.default, aten.embedding.default, aten.index.Tensor, aten._unsafe_index.Tensor}
)
"""Operators that read one operand at a computed place: it must have memory."""

CONSTANTS = frozenset(
    {
        aten.full.default,
        aten.full_like.default,
        aten.scalar_tensor.default,
        aten.empty.memory_format,
        prims.iota.default,
    }
)
