"""All convolutions as two-dimensional ones that are not transposed.

in one dim        of images of height one
transposed        the gradient of a convolution, with respect to its input
backward          gradient of input, of weight, and the sum for the bias
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels import operators as own
from pantile.lowering.kernels.nodes import as_type_of, new_node, reshaped
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.types import computed

aten = torch.ops.aten

Geometry = tuple[Any, ...]
"""Stride, padding, dilation, transposed, output padding, groups."""


def simplify_convolution(graph: fx.Graph, node: fx.Node) -> None:
    """Rewrite a convolution, or the backward of one."""
    _flatten(graph, node)
    if node.target is aten.convolution_backward.default:
        _divide(graph, node)
    elif node.args[6]:
        _turn(graph, node)


def _flatten(graph: fx.Graph, node: fx.Node) -> None:
    """One dim: put a second one of size one before it."""
    backward = node.target is aten.convolution_backward.default
    images = 3 if backward else 2
    if len(node.args[0].meta["val"].shape) != 3:  # type: ignore[union-attr]
        return
    args: list[Any] = list(node.args)
    with graph.inserting_before(node):
        for place in range(images):
            a, b, length = (int(n) for n in args[place].meta["val"].shape)
            args[place] = reshaped(graph, args[place], (a, b, 1, length))
    first = 4 if backward else 3
    for place, fill in ((first, 1), (first + 1, 0), (first + 2, 1), (first + 4, 0)):
        args[place] = [fill, *args[place]]
    node.args = tuple(args)
    value = node.meta["val"]
    if not backward:
        node.meta["val"] = value.unsqueeze(2)
        _give(graph, node, value)
        return
    node.meta["val"] = tuple(v.unsqueeze(2) if v is not None and v.dim() == 3 else v for v in value)
    for user in list(node.users):
        kept = user.meta.get("val")
        if user.target is operator.getitem and kept is not None and kept.dim() == 3:
            old = user.meta["val"]
            user.meta["val"] = old.unsqueeze(2)
            _give(graph, user, old)


def _give(graph: fx.Graph, node: fx.Node, value: torch.Tensor) -> None:
    """Users of a flattened value get it in the shape it had."""
    with graph.inserting_after(node):
        plain = new_node(graph, aten.reshape.default, (node, list(value.shape)), value)
    node.replace_all_uses_with(plain, delete_user_cb=lambda user: user is not plain)


def _plain(geometry: Geometry) -> Geometry:
    stride, padding, dilation, _, _, groups = geometry
    return stride, padding, dilation, False, [0] * len(stride), groups


def _turn(graph: fx.Graph, node: fx.Node) -> None:
    """A transposed convolution."""
    source, weight, bias, *geometry = node.args
    value = node.meta["val"]
    with graph.inserting_before(node):
        args = (source, weight, _plain(tuple(geometry)))
        result = new_node(graph, own.conv_input, args, value)
        if isinstance(bias, fx.Node):
            channels = [value.shape[1] if dim == 1 else 1 for dim in range(value.dim())]
            added = reshaped(graph, bias, channels)
            # Rounded when the bias was added, not before.
            wide = result.meta["val"] = value.to(computed(value.dtype))
            result = new_node(graph, aten.add.Tensor, (result, added), wide)
            result = as_type_of(graph, result, value)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _divide(graph: fx.Graph, node: fx.Node) -> None:
    gradient, source, weight, _biases, *geometry, _ = node.args
    for user in list(node.users):
        if user.target is not operator.getitem:
            raise Refused("the gradients of a convolution as a tuple")
        which: Any = user.args[1]
        like = node.meta["val"][which]
        with graph.inserting_before(node):
            if which == 2:
                assert isinstance(gradient, fx.Node)
                dims = [d for d in range(gradient.meta["val"].dim()) if d != 1]
                part = new_node(graph, aten.sum.dim_IntList, (gradient, dims), like)
            else:
                given = (gradient, source, weight)
                part = _gradient(graph, given, tuple(geometry), which, like)
        user.replace_all_uses_with(part)
        graph.erase_node(user)
    graph.erase_node(node)


def _gradient(
    graph: fx.Graph, given: tuple[Any, ...], geometry: Geometry, which: int, like: torch.Tensor
) -> fx.Node:
    gradient, source, weight = given
    plain = _plain(geometry)
    transposed = geometry[3]
    if which == 0 and transposed:
        return new_node(graph, aten.convolution.default, (gradient, weight, None, *plain), like)
    if which == 0:
        return new_node(graph, own.conv_input, (gradient, weight, plain), like)
    pair = (source, gradient) if transposed else (gradient, source)
    return new_node(graph, own.conv_weight, (*pair, plain), like)
