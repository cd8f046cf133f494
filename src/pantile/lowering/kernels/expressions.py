"""All rules by which the value of a node at an index is written down.

views       rewrite the index               permute, reshape, expand, slice, …
choices     depend on the index             one-hot scatter, iota, …
lookups     an index that is computed       gather, embedding, …
pointwise   compute                         see `pointwise`
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels.index import Affine, Axis, Index, Space, index_of
from pantile.lowering.kernels.nodes import slice_of
from pantile.lowering.kernels.pointwise import POINTWISE, Rule
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.trace import Trace, broadcast
from pantile.lowering.kernels.types import (
    HALVES,
    MOST_ELEMENTS,
    cpp,
    dtype_of,
    literal,
    shape_of,
)

aten = torch.ops.aten
prims = torch.ops.prims


def _same(trace: Trace, node: fx.Node, index: Index) -> str:
    return trace.value(node.args[0], index)  # type: ignore[arg-type]


def _reshape(trace: Trace, node: fx.Node, index: Index) -> str:
    source = _source(node)
    if not cuts_rows(node):
        return trace.value(source, trace.space.reshape(index, shape_of(node), shape_of(source)))
    # Its source has memory: the place is divided when the kernel runs.
    linear, step, places = Affine(), 1, {}
    for part, size in zip(reversed(index), reversed(shape_of(node)), strict=True):
        linear, step = linear + part * step, step * size
    step = 1
    for dim, size in reversed(list(enumerate(shape_of(source)))):
        places[dim] = trace.state("i64", f"({{0}}) / {step} % {size}", (), [linear])
        step *= size
    return trace.load_at(source, [Affine()] * len(places), places)


def cuts_rows(node: fx.Node) -> bool:
    """Is this a reshape that splitting of loops may not express?"""
    if node.target not in RESHAPES:
        return False
    if "cuts rows" not in node.meta:
        node.meta["cuts rows"] = _cuts_rows(shape_of(node), node)
    return bool(node.meta["cuts rows"])


def _cuts_rows(new: tuple[int, ...], node: fx.Node) -> bool:
    """A slice of it has shorter loops: those must be split too."""
    slices = [user for user in node.users if user.target is aten.slice.Tensor]
    indices = [_sliced(user, _any_index(user)) for user in slices]
    try:
        for index in (_any_index(node), *indices):
            Space().reshape(index, new, shape_of(_source(node)))
    except Refused:
        return True
    return False


def _any_index(node: fx.Node) -> Index:
    return index_of(Axis(size) for size in shape_of(node))


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
    return trace.value(_source(node), _sliced(node, index))


def _sliced(node: fx.Node, index: Index) -> Index:
    """The index into what a slice is taken from."""
    dim, start, step = slice_of(node.args[1:], node.kwargs, shape_of(_source(node)))
    inner = list(index)
    inner[dim] = inner[dim] * step + start
    return tuple(inner)


def _select(trace: Trace, node: fx.Node, index: Index) -> str:
    source = _source(node)
    dim: Any = node.args[1]
    place: Any = node.args[2]
    shape = shape_of(source)
    dim %= len(shape)
    return trace.value(source, (*index[:dim], Affine(place % shape[dim]), *index[dim:]))


def _diagonal(trace: Trace, node: fx.Node, index: Index) -> str:
    source = _source(node)
    rank = len(shape_of(source))
    defaults = {"offset": 0, "dim1": 0, "dim2": 1}
    given: dict[str, Any] = dict(zip(defaults, node.args[1:], strict=False)) | dict(node.kwargs)
    offset, first, second = (given.get(name, default) for name, default in defaults.items())
    places = {
        first % rank: index[-1] + max(0, -offset),
        second % rank: index[-1] + max(0, offset),
    }
    rest = iter(index[:-1])
    inner = [places[dim] if dim in places else next(rest) for dim in range(rank)]
    return trace.value(source, inner)


def _unfold(trace: Trace, node: fx.Node, index: Index) -> str:
    """Windows of a dim, whose elements are in a dim of their own, the last."""
    dim: Any = node.args[1]
    step: Any = node.args[3]
    inner = list(index[:-1])
    if inner:  # else the one window of a single number
        inner[dim % len(inner)] *= step
        inner[dim % len(inner)] += index[-1]
    return trace.value(_source(node), inner)


def _piece(trace: Trace, node: fx.Node, index: Index) -> str:
    """One of the results of unbind or split."""
    several, number = node.args
    assert isinstance(several, fx.Node) and isinstance(number, int)
    source = _source(several)
    shape = shape_of(source)
    if several.target is aten.unbind.int:
        dim: Any = several.args[1] if len(several.args) > 1 else several.kwargs.get("dim", 0)
        dim %= len(shape)
        return trace.value(source, (*index[:dim], Affine(number), *index[dim:]))
    if several.target in (aten.split.Tensor, aten.split_with_sizes.default):
        named = dict(zip(("sizes", "dim"), several.args[1:], strict=False)) | dict(several.kwargs)
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
    if _first_place(node, have.storage_offset()) != have.storage_offset():
        raise Refused("as_strided from another place")
    if _same_layout(have, want):
        return trace.value(source, index)
    if not _all_in_order(have, want):
        raise Refused("as_strided that is no alias")
    return trace.value(source, trace.space.reshape(index, shape_of(node), shape_of(source)))


def _as_strided_scatter(trace: Trace, node: fx.Node, index: Index) -> str:
    """A value written over all of another one, in the order of its memory."""
    whole, piece, *layout = node.args[:4]
    assert isinstance(whole, fx.Node) and isinstance(piece, fx.Node)
    have = whole.meta["val"]
    want = have.as_strided(*layout)
    if _first_place(node, 0) != have.storage_offset() or not _all_in_order(have, want):
        raise Refused("as_strided_scatter into a part")
    if dtype_of(piece) is not dtype_of(node):
        raise Refused("as_strided_scatter of another type")
    return trace.value(piece, trace.space.reshape(index, shape_of(node), shape_of(piece)))


def _first_place(node: fx.Node, default: int) -> int:
    """Where an as_strided begins, counted from the start of the memory."""
    at = 4 if node.target is aten.as_strided_scatter.default else 3
    found: Any = node.args[at] if len(node.args) > at else node.kwargs.get("storage_offset")
    return default if found is None else int(found)


def _same_layout(have: torch.Tensor, want: torch.Tensor) -> bool:
    """Do the same indices lead to the same places?"""
    steps = zip(have.shape, have.stride(), want.stride(), strict=False)
    return have.shape == want.shape and all(n == 1 or a == b for n, a, b in steps)


def _all_in_order(have: torch.Tensor, want: torch.Tensor) -> bool:
    """Are these two shapes of the same memory, one element behind the other?"""
    dense = all(_same_layout(x, torch.empty(x.shape, device="meta")) for x in (have, want))
    return have.numel() == want.numel() and dense


def _copied(trace: Trace, node: fx.Node, index: Index) -> str:
    """The second argument, as the first one is."""
    return trace.operand(node.args[1], index, dtype_of(node))


def _repeat(trace: Trace, node: fx.Node, index: Index) -> str:
    source = _source(node)
    shape = shape_of(source)
    last = index[len(index) - len(shape) :]
    inner = [trace.space.divmod(i, n)[1] for i, n in zip(last, shape, strict=True)]
    return trace.value(source, trace.space.resolved(inner))


def _flip(trace: Trace, node: fx.Node, index: Index) -> str:
    dims: Any = node.args[1]
    inner = list(index)
    for dim in dims:
        inner[dim] = inner[dim] * -1 + (shape_of(node)[dim] - 1)
    return trace.value(_source(node), inner)


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
    if abs(start) + abs(step) * shape_of(node)[0] > MOST_ELEMENTS:
        text = f"({cpp(dtype)})((i64)({{0}}) * {step}L + {start}L)"
        return trace.state(cpp(dtype), text, (), [index[0]])
    return trace.state(cpp(dtype), f"({cpp(dtype)})({{0}})", (), [index[0] * step + start])


def _gather(trace: Trace, node: fx.Node, index: Index) -> str:
    source, dim, places = node.args[:3]
    assert isinstance(source, fx.Node) and isinstance(dim, int) and isinstance(places, fx.Node)
    place = trace.value(places, index)
    dim %= len(index)
    return _lookup(trace, source, index, {dim: place}, "within")


def _embedding(trace: Trace, node: fx.Node, index: Index) -> str:
    source, places = node.args[:2]
    assert isinstance(source, fx.Node) and isinstance(places, fx.Node)
    place = trace.value(places, index[:-1])
    return _lookup(trace, source, (Affine(), index[-1]), {0: place}, "within")


def _index(trace: Trace, node: fx.Node, index: Index) -> str:
    source, places = node.args[:2]
    assert isinstance(source, fx.Node) and isinstance(places, (list, tuple))
    tensors = {dim: place for dim, place in enumerate(places) if place is not None}
    if any(dtype_of(place) in (torch.bool, torch.uint8) for place in tensors.values()):
        raise Refused("indexing by a mask")
    first, rank = where_indexed(places)
    found = {
        dim: trace.operand(p, index[first : first + rank], torch.int64)
        for dim, p in tensors.items()
    }
    rest = iter([*index[:first], *index[first + rank :]])
    inner = tuple(Affine() if d in found else next(rest) for d in range(len(shape_of(source))))
    return _lookup(trace, source, inner, found)


def _masked_index(trace: Trace, node: fx.Node, index: Index) -> str:
    """Where the mask is false the place may be outside, and a number is taken."""
    source, mask, places, fill = node.args[:4]
    assert isinstance(source, fx.Node) and isinstance(places, (list, tuple))
    dtype = dtype_of(node)
    chosen = trace.operand(mask, index, torch.bool)
    first, rank = where_indexed(places)
    found = {}
    for dim, place in enumerate(places):
        if place is not None:
            name = trace.operand(place, index[first : first + rank], torch.int64)
            found[dim] = trace.state("i64", f"{chosen} ? {name} : 0", [chosen, name])
    rest = iter([*index[:first], *index[first + rank :]])
    inner = tuple(Affine() if d in found else next(rest) for d in range(len(shape_of(source))))
    value = _lookup(trace, source, inner, found)
    other = trace.operand(fill, (), dtype)
    return trace.state(cpp(dtype), f"{chosen} ? {value} : {other}", [chosen, value, other])


def where_indexed(places: Sequence[Any]) -> tuple[int, int]:
    """Which dims of a result of indexing are those of the index tensors: the first, how many."""
    dims = [dim for dim, place in enumerate(places) if place is not None]
    rank = max(len(shape_of(places[dim])) for dim in dims)
    together = dims == list(range(dims[0], dims[-1] + 1))
    return (dims[0] if together else 0), rank


def _lookup(
    trace: Trace,
    source: fx.Node,
    index: Index,
    places: Mapping[int, str],
    check: str = "bounded",
) -> str:
    """Places may be counted from the end if the check is `bounded`."""
    source = storage_of(source)
    shape = shape_of(source)
    wrapped = {
        dim: trace.state("i64", f"{check}({place}, {shape[dim]}, failed)", [place])
        for dim, place in places.items()
    }
    return trace.load_at(source, index, wrapped)


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
    place = trace.state("i64", f"within({place}, {shape[dim]}, failed)", [place])
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

RESHAPES = frozenset({aten.view.default, aten.reshape.default, aten._unsafe_view.default})

VIEWS: dict[Any, Rule] = {
    **dict.fromkeys(ALIASES, _same),
    **dict.fromkeys(RESHAPES, _reshape),
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
    aten.diagonal.default: _diagonal,
    aten.unfold.default: _unfold,
    aten.as_strided.default: _as_strided,
    aten.repeat.default: _repeat,
    operator.getitem: _piece,
}
"""Views: the index is rewritten, nothing is computed."""


def is_view(node: fx.Node) -> bool:
    """Is the value of a node that of its first argument, elsewhere? So is a half as a float."""
    if node.target is prims.convert_element_type.default:
        return dtype_of(node) is torch.float32 and dtype_of(_source(node)) in HALVES
    return node.op == "call_function" and node.target in VIEWS


RULES: dict[Any, Rule] = {
    **POINTWISE,
    **VIEWS,
    aten.full.default: _full,
    aten.full_like.default: _full,
    aten.scalar_tensor.default: _full,
    aten.empty.memory_format: _zero,
    aten.empty_strided.default: _zero,
    prims.iota.default: _iota,
    aten.copy.default: _copied,
    aten.flip.default: _flip,
    prims.rev.default: _flip,
    aten.as_strided_scatter.default: _as_strided_scatter,
    aten.gather.default: _gather,
    aten.embedding.default: _embedding,
    aten.index.Tensor: _index,
    aten._unsafe_index.Tensor: _index,
    aten._unsafe_masked_index.default: _masked_index,
    aten.scatter.value: _scatter_value,
    aten.select_scatter.default: _select_scatter,
}

LOOKUPS = frozenset(
    {
        aten.gather.default,
        aten.embedding.default,
        aten.index.Tensor,
        aten._unsafe_index.Tensor,
        aten._unsafe_masked_index.default,
    }
)
"""Operators that read one operand at a computed place: it must have memory."""

CONSTANTS = frozenset(
    {
        aten.full.default,
        aten.full_like.default,
        aten.scalar_tensor.default,
        aten.empty.memory_format,
        aten.empty_strided.default,
        prims.iota.default,
    }
)
