"""Which nodes share memory with a placeholder: the placeholder itself, and every view of it."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

# A view whose schema does not say so: autograd uses it where nobody else reads the argument.
_UNDECLARED_VIEWS = frozenset({torch.ops.aten._unsafe_view.default})


def aliased_placeholders(graph: fx.Graph) -> dict[fx.Node, frozenset[fx.Node]]:
    """For each node that may share memory with placeholders: those placeholders."""
    found: dict[fx.Node, frozenset[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            found[node] = frozenset({node})
            continue
        sources = (found.get(source, frozenset()) for source in viewed(node))
        roots = frozenset[fx.Node]().union(*sources)
        if roots:
            found[node] = roots
    return found


def viewed(node: fx.Node) -> list[fx.Node]:
    """The arguments whose memory the result of a node may share."""
    if node.target is operator.getitem or node.target in _UNDECLARED_VIEWS:
        return node.all_input_nodes[:1]
    if not isinstance(node.target, OpOverload):
        return []
    schema = node.target._schema
    if not any(entry.alias_info for entry in schema.returns):
        return []
    names = {entry.name for entry in schema.arguments if entry.alias_info}
    given: dict[str, Any] = dict(zip((a.name for a in schema.arguments), node.args, strict=False))
    given.update(node.kwargs)
    shared: list[fx.Node] = []
    for name in names & given.keys():
        fx.map_arg(given[name], shared.append)
    return shared
