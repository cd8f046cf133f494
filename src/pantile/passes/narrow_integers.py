"""Let int64 numbers have the values of int32 ones, as on a device that has no others; strict mode.

    %y = mul(%a, %b)              %y = mul(%a, %b)
    %q = div(%y, 3)        ->     %n = _to_copy(%y, int32);  %w = _to_copy(%n, int64)
                                  %q = div(%w, 3)

The type stays: kernels of a CPU want int64 for indices and classes. Sums and products of numbers
that wrapped around are right again when the result wraps around, so the cut is made only in front
of an operator that sees the high bits: a division, a comparison, a conversion to floating point.
"""

from __future__ import annotations

import torch
from torch import fx
from torch._ops import OpOverload

from pantile.passes.node_writer import NodeWriter
from pantile.program.program import WRITE, Program, copy_graph
from pantile.program.spec import InputKind

aten = torch.ops.aten

_MAKES = """
    add bmm cumprod cumsum dot fill full matmul mm mul mv neg pow prod rsub square sub sum
"""
_SEES = """
    abs amax amin argmax argmin argsort bitwise_right_shift clamp clamp_max clamp_min cumprod div
    floor_divide fmod max maximum min minimum pow prod remainder sign sort topk
"""
_PLACES = """
    _ctc_loss _embedding_bag _embedding_bag_forward_only embedding gather index index_add
    index_copy index_fill index_put index_reduce index_select nll_loss2d_forward nll_loss_forward
    scatter scatter_add scatter_reduce where
"""
_MAKERS = frozenset(_MAKES.split())
"""What makes numbers that were not there before."""
_SEERS = frozenset(_SEES.split())
"""Integers in, integers out, and the high bits matter."""
_READERS = frozenset(_PLACES.split())
"""They read integers as places."""


def narrow_integers(program: Program) -> Program:
    """The program with its integers cut to 32 bits wherever that makes a difference."""
    if not any(_is_long(node) for node in program.graph.nodes):
        return program
    graph, _ = copy_graph(program.graph)
    writer = NodeWriter(graph)
    kinds = (InputKind.ARGUMENT, InputKind.BUFFER)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    inputs = zip(placeholders, program.inputs, strict=True)
    fed = {node for node, entry in inputs if entry.kind in kinds}
    body = next(n for n in graph.nodes if n.op not in ("placeholder", "get_attr"))
    for node in list(graph.nodes):
        if not _is_long(node) or not (node in fed or _name(node) in _MAKERS):
            continue
        users = [user for user in node.users if _sees_high_bits(user)]
        if users:
            place = body if node in fed else node.next
            with graph.inserting_before(place), writer.standing_for(node):
                cut = writer.call(aten._to_copy.default, node, dtype=torch.int32)
                wide = writer.call(aten._to_copy.default, cut, dtype=torch.int64)
            for user in users:
                user.replace_input_with(node, wide)
    graph.lint()
    return program.replace(graph=graph)


def _is_long(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype is torch.int64


def _sees_high_bits(user: fx.Node) -> bool:
    name = _name(user)
    if not name or user.target is WRITE or name in _READERS:
        return False
    value = user.meta.get("val")
    if name in _SEERS:
        return True
    return isinstance(value, torch.Tensor) and value.dtype not in (torch.int64, torch.int32)


def _name(node: fx.Node) -> str:
    if not isinstance(node.target, OpOverload) or node.target.namespace != "aten":
        return ""
    return node.target._schema.name.removeprefix("aten::")
