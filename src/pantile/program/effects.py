"""Which nodes do more than compute a value: random draws, and effects on the world.

Neither may be dropped, repeated or reordered: a missing draw shifts every later one, and the run
would no longer match eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

EFFECTS = frozenset({"pantile::print_tensor"})
"""Operators whose schema looks pure but which the user can see happen."""

NOTICED = EFFECTS | {"pantile::host_call", "pantile::fps"}
"""Those, and operators that call the user's code or draw numbers without saying so."""

Subgraphs = Mapping[str, fx.GraphModule]


def is_random(node: fx.Node, subgraphs: Subgraphs | None = None) -> bool:
    """True if the node draws random numbers, itself or in one of the `subgraphs` it runs.

    Attention without dropout does not, though torch counts its operator among the random ones.
    """
    if isinstance(node.target, OpOverload) and _argument(node, "dropout_p") == 0:
        return False
    return _any_operator(node, subgraphs, _draws)


def has_effect(node: fx.Node, subgraphs: Subgraphs | None = None) -> bool:
    """True if the node changes something besides computing its value.

    It writes to a tensor, it is one of `EFFECTS`, or it returns nothing at all (an assertion).
    """
    return _any_operator(node, subgraphs, _acts)


def is_noticed(node: fx.Node, subgraphs: Subgraphs | None = None) -> bool:
    """True if the user would notice another run of the node, or one at another time."""
    return _any_operator(node, subgraphs, lambda op: op._schema.name in NOTICED)


def _draws(op: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in op.tags


def _acts(op: OpOverload) -> bool:
    schema = op._schema
    return schema.is_mutable or not schema.returns or schema.name in EFFECTS


def _any_operator(
    node: fx.Node, subgraphs: Subgraphs | None, holds: Callable[[OpOverload], bool]
) -> bool:
    if isinstance(node.target, OpOverload):
        return holds(node.target)
    if not isinstance(node.target, HigherOrderOperator):
        return False
    wrapped = [arg for arg in (*node.args, *node.kwargs.values()) if isinstance(arg, OpOverload)]
    inner = [
        _any_operator(child, modules_of(module), holds)
        for module in called_modules(node, subgraphs or {})
        for child in module.graph.nodes
    ]
    return any(inner) or any(holds(op) for op in wrapped)


def _argument(node: fx.Node, name: str) -> object:
    """An argument of an operator's call; None if it has none of that name."""
    for place, entry in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if entry.name == name:
            default = node.kwargs.get(name, entry.default_value)
            return node.args[place] if place < len(node.args) else default
    return None


def called_modules(node: fx.Node, subgraphs: Subgraphs) -> Iterator[fx.GraphModule]:
    """The subgraphs a higher-order operator runs."""
    for source in node.all_input_nodes:
        if source.op == "get_attr" and str(source.target) in subgraphs:
            yield subgraphs[str(source.target)]


def modules_of(module: fx.GraphModule) -> dict[str, fx.GraphModule]:
    """The subgraphs of a subgraph, by the name its `get_attr` nodes use."""
    return {
        name: child
        for name, child in module.named_modules()
        if name and isinstance(child, fx.GraphModule)
    }
