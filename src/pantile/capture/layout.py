"""Keep the memory layout of tensors that are written in place.

    %a = split(x)[0]          # rows with gaps between them
    %b = add_(%a, y)                          %t = add(%a, y)
    %c = sigmoid_(%b)             ->          %b = copy_(%a, %t)      # the gaps stay
                                              ...

Functionalisation turns `add_` into `add`, whose result has no gaps. The numbers are the same, but
the next kernel then runs over longer rows: its vector loop covers elements that eager computes in
its scalar tail, and the last bit of a sigmoid or tanh changes. (nn.GRU is written in this way.)

    %m = bernoulli_(%e, 0.9)      ->          %v = permute(%e, order of its memory)
                                              %d = bernoulli(%v, 0.9)
                                              %m = permute(%d, back)

`bernoulli_` draws in the order of the memory, `bernoulli` in the order of the dimensions: a
dropout mask over a transposed tensor would be another one.
"""

from __future__ import annotations

import torch
from torch import fx
from torch._prims_common import is_non_overlapping_and_dense_or_false

from pantile.program.nodes import erase, without_value

aten = torch.ops.aten
_COPY, _DRAW = aten.copy_.default, aten.bernoulli_.float
_NEW = frozenset({aten.empty_like.default, aten.empty.memory_format, aten.new_empty.default})


def keep_layout(graph: fx.Graph) -> None:
    """Rewrite the in-place ops whose functional form has another layout."""
    for node in list(graph.nodes):
        value = _written_value(node)
        if value is None:
            continue
        if node.target is _DRAW and not value.is_contiguous():
            _draw_in_memory_order(graph, node, value)
        elif not is_non_overlapping_and_dense_or_false(value):
            _write_by_copy(graph, node)


def _written_value(node: fx.Node) -> torch.Tensor | None:
    """The fake of the tensor that an in-place op writes; None for every other op."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return None
    written = node.args[0] if node.args else None
    if not target._schema.name.endswith("_") or not isinstance(written, fx.Node):
        return None
    value = written.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def _write_by_copy(graph: fx.Graph, node: fx.Node) -> None:
    """Compute out of place, where that is possible, and copy, which keeps strides."""
    functional = functional_form(node.target)
    if functional is None or node.target is _COPY:
        return
    with graph.inserting_before(node):
        result = graph.call_function(functional, node.args, node.kwargs)
    result.meta = without_value(node)
    node.target, node.args, node.kwargs = _COPY, (node.args[0], result), {}


def functional_form(target: object) -> torch._ops.OpOverload | None:
    """The op that computes what an in-place op writes; None if there is none."""
    assert isinstance(target, torch._ops.OpOverload)
    namespace, _, name = target._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name.removesuffix("_"), None)
    functional = getattr(packet, target._overloadname, None)
    if not isinstance(functional, torch._ops.OpOverload) or functional._schema.is_mutable:
        return None
    return functional


def _draw_in_memory_order(graph: fx.Graph, node: fx.Node, value: torch.Tensor) -> None:
    # torch records no argument that has its default value.
    written, rest = node.args[0], node.args[1:] or (0.5,)
    assert isinstance(written, fx.Node)
    strides = value.stride()
    order = sorted(range(value.dim()), key=lambda dim: -strides[dim])
    back = [order.index(dim) for dim in range(value.dim())]
    with graph.inserting_before(node):
        dense = graph.call_function(aten.permute.default, (written, order))
        drawn = graph.call_function(aten.bernoulli.p, (dense, *rest), node.kwargs)
        result = graph.call_function(aten.permute.default, (drawn, back))
    for made in (dense, drawn, result):
        made.meta = without_value(node)
    if written.target in _NEW and set(written.users) == {dense, node}:
        node.replace_all_uses_with(result)
        erase(node)
    else:
        node.target, node.args, node.kwargs = _COPY, (written, result), {}
