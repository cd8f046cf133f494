"""New nodes of a graph, without torch's search for symbols; and no trace of old ones.

`fx.Graph` looks for symbolic numbers among all arguments of a new call, to warn of them: as long as
everything else it does. Programs hold none, so a call is made without arguments and gets them next.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import fx


def new_call(
    graph: fx.Graph,
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
) -> fx.Node:
    """One more call, at the graph's insertion point."""
    node = graph.create_node("call_function", target, name=name)
    node.args = args
    if kwargs:
        node.kwargs = dict(kwargs)
    return node


def copied_node(graph: fx.Graph, node: fx.Node, moved: Callable[[fx.Node], Any]) -> fx.Node:
    """A copy of a node of another graph; `moved` tells what its operands became."""
    if node.op != "call_function":
        return graph.node_copy(node, moved)
    args, kwargs = fx.map_arg((node.args, node.kwargs), moved)
    copied = new_call(graph, node.target, args, kwargs, name=node.name)  # type: ignore[arg-type]
    copied.type = node.type
    copied.meta = copy.copy(node.meta)
    return copied


def without_value(node: fx.Node) -> dict[str, Any]:
    """The metadata of a node for another one, which holds something else."""
    return {key: value for key, value in node.meta.items() if key != "val"}


def erase(node: fx.Node) -> None:
    """Take a node out of its graph for good: the names of a graph keep it, and all it knows."""
    graph = node.graph
    graph.erase_node(node)
    graph._graph_namespace._obj_to_name.pop(node, None)
