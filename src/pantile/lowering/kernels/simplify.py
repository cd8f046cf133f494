"""A graph in which every node has one result, and nothing is written but inputs.

copy_ to a value        the value after it is the new one
convolution_backward    gradient of input, of weight, and the sum for the bias
max_pool2d              the values; the backward finds the places again
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels import operators as own
from pantile.lowering.kernels.convolutions import simplify_convolution
from pantile.lowering.kernels.expressions import ALIASES, VIEWS
from pantile.lowering.kernels.nodes import as_type_of, new_node, reshaped
from pantile.lowering.kernels.outside import is_effect
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.types import computed

aten = torch.ops.aten


def simplify(graph: fx.Graph) -> None:
    """Change a graph in place."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is aten.copy_.default and _written(node).op != "placeholder":
            _forward_copy(graph, node)
        elif node.target in _SIMPLER:
            before, after = node.prev, node.next
            _SIMPLER[node.target](graph, node)
            _note_origin(before, after, node)
        elif str(node.target) == "prims.fma.default":
            node.target = own.fma
    for node in reversed(list(graph.nodes)):
        unused = node.op == "call_function" and not node.users
        if unused and node.target is not aten.copy_.default and not is_effect(node):
            graph.erase_node(node)


def _note_origin(before: fx.Node, after: fx.Node, node: fx.Node) -> None:
    """What was written between two nodes was made for the same node of the program as `node`."""
    while (before := before.next) is not after and before.op != "root":
        before.meta.setdefault("origin", node.meta.get("origin"))


def _written(node: fx.Node) -> fx.Node:
    target = node.args[0]
    assert isinstance(target, fx.Node)
    return target


def _forward_copy(graph: fx.Graph, node: fx.Node) -> None:
    """Whoever reads the target later reads the source."""
    target, source = node.args[:2]
    assert isinstance(target, fx.Node) and isinstance(source, fx.Node)
    if target.target in VIEWS and target.target not in ALIASES:
        raise Refused("a copy into a part of a value")
    target.replace_all_uses_with(source, delete_user_cb=lambda user: user > node)
    node.replace_all_uses_with(source)
    graph.erase_node(node)


def _window(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Size, stride, padding, dilation, each for height and width."""
    size, stride, padding, dilation, *_ = (*args, *(None,) * 4)
    defaults = (size, stride or size, padding or [0, 0], dilation or [1, 1])
    return tuple(tuple(x) * 2 if len(x) == 1 else tuple(x) for x in defaults)


def _image(graph: fx.Graph, value: Any) -> fx.Node:
    """An image of a batch; one that stands alone becomes a batch of one."""
    assert isinstance(value, fx.Node)
    shape = value.meta["val"].shape
    return value if len(shape) == 4 else reshaped(graph, value, (1, *shape))


def _pooled(graph: fx.Graph, target: Any, args: tuple[Any, ...], like: torch.Tensor) -> fx.Node:
    """Images as they are, or the one of a batch of one."""
    if like.dim() == 4:
        return new_node(graph, target, args, like)
    return reshaped(graph, new_node(graph, target, args, like.unsqueeze(0)), like.shape)


def _pool_values(graph: fx.Graph, node: fx.Node) -> None:
    source, *window = node.args
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] == 0:
            with graph.inserting_before(node):
                args = (_image(graph, source), _window(tuple(window)))
                values = _pooled(graph, own.max_pool, args, user.meta["val"])
            user.replace_all_uses_with(values)
            graph.erase_node(user)


def _pool_gradient(graph: fx.Graph, node: fx.Node) -> None:
    gradient, source, *window, places = node.args
    assert isinstance(places, fx.Node)
    with graph.inserting_before(node):
        images = (_image(graph, gradient), _image(graph, source))
        args = (*images, _window(tuple(window)))
        result = _pooled(graph, own.max_pool_input, args, node.meta["val"])
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _pool_means(graph: fx.Graph, node: fx.Node) -> None:
    """Means of windows, or the gradient of these."""
    backward = node.target in (
        aten.avg_pool2d_backward.default,
        aten._adaptive_avg_pool2d_backward.default,
    )
    rest = [*node.args[2 if backward else 1 :], *(None,) * 6]
    if node.target in (aten.avg_pool2d.default, aten.avg_pool2d_backward.default):
        *window, _, counts, divisor = rest[:6]
        how = "AVG_INSIDE" if counts is False else "AVG_ALL"
        args: tuple[Any, ...] = (_window((*window,)), how, divisor or 0)
    else:
        args = (((1, 1), (1, 1), (0, 0), (1, 1)), "AVG_ADAPTIVE", 0)
    target = own.avg_pool_input if backward else own.avg_pool
    flat = tuple(number for pair in args[0] for number in pair)
    with graph.inserting_before(node):
        args = (_image(graph, node.args[0]), flat, *args[1:])
        result = _pooled(graph, target, args, node.meta["val"])
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _scaled_product(graph: fx.Graph, node: fx.Node) -> None:
    """A product that is added to something, one of them times a number."""
    added, left, right = node.args[:3]
    alpha, beta = (node.kwargs.get(name, 1) for name in ("alpha", "beta"))
    if alpha == 1 and beta == 1:
        return
    product = aten.mm.default if node.target is aten.addmm.default else aten.bmm.default
    like = node.meta["val"]
    wide = like.to(computed(like.dtype))  # rounded at the end only
    with graph.inserting_before(node):
        result = new_node(graph, product, (left, right), wide)
        if alpha != 1:
            result = new_node(graph, aten.mul.Scalar, (result, alpha), wide)
        if beta != 0:  # nothing of it is read then, no NaN either
            result = new_node(graph, aten.add.Tensor, (result, added), wide)
            result.kwargs = {"alpha": beta}
        result = as_type_of(graph, result, like)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


_SIMPLER: dict[Any, Callable[[fx.Graph, fx.Node], None]] = {
    aten.addmm.default: _scaled_product,
    aten.baddbmm.default: _scaled_product,
    aten.convolution.default: simplify_convolution,
    aten.convolution_backward.default: simplify_convolution,
    aten.max_pool2d_with_indices.default: _pool_values,
    aten.max_pool2d_with_indices_backward.default: _pool_gradient,
    aten.avg_pool2d.default: _pool_means,
    aten.avg_pool2d_backward.default: _pool_means,
    aten._adaptive_avg_pool2d.default: _pool_means,
    aten._adaptive_avg_pool2d_backward.default: _pool_means,
}
