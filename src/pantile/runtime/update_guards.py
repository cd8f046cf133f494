"""Would an optimizer's Python take the same branches again? Asked before every update.

    guard   rho(step + 1, beta2) > 5      60 parameters: 60 guards, one expression
    group   expression, [(step/a, beta2), (step/b, beta2), …]

Guards with the same expression form a group, and each distinct set of operands is computed once:
all step counters are equal as a rule, so a group costs one evaluation, or none if its numbers are
those of the last time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from pantile.program.program import Program
from pantile.program.spec import InputKind

_MOST_ANSWERS = 256


@dataclass(eq=False)
class _Group:
    """Guards that compute the same from different inputs; `operands` are indices of inputs."""

    node: fx.Node
    leaves: tuple[fx.Node, ...]
    taken: bool
    operands: list[tuple[int, ...]] = field(default_factory=list)
    answers: dict[Any, bool] = field(default_factory=dict)


class UpdateGuards:
    """The guards of one update program."""

    def __init__(self, program: Program) -> None:
        self._constants = program.constants
        self._groups = _grouped(program)

    def __bool__(self) -> bool:
        return bool(self._groups)

    def read_state(self, program: Program) -> bool:
        """Can a guard's answer change from one update to the next, without the user's doing?"""
        return any(
            program.inputs[i].kind is InputKind.OPTIMIZER
            for group in self._groups
            for operands in group.operands
            for i in operands
        )

    def hold(self, values: Sequence[Any]) -> bool:
        """True if every branch goes as it went while tracing."""
        return all(self._group_holds(group, values) for group in self._groups)

    def _group_holds(self, group: _Group, values: Sequence[Any]) -> bool:
        cases: dict[Any, tuple[int, ...]] = {}
        for operands in group.operands:
            cases[tuple(_key(values[i]) for i in operands)] = operands
        for key, operands in cases.items():
            if key not in group.answers:
                if len(group.answers) >= _MOST_ANSWERS:
                    group.answers.clear()
                known = dict(zip(group.leaves, (values[i] for i in operands), strict=True))
                with torch.no_grad():
                    group.answers[key] = bool(self._value(group.node, known))
            if group.answers[key] is not group.taken:
                return False
        return True

    def _value(self, node: fx.Node, known: dict[fx.Node, Any]) -> Any:
        """Compute one node and what it needs."""
        if node not in known:
            if node.op == "get_attr":
                return self._constants[str(node.target)]
            args = fx.map_arg(node.args, lambda n: self._value(n, known))
            kwargs = fx.map_arg(node.kwargs, lambda n: self._value(n, known))
            known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return known[node]


def _key(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    # More than one number is never asked for by an optimizer of torch; such a guard is not cached.
    return (value.dtype, value.item()) if value.numel() == 1 else object()


def _grouped(program: Program) -> list[_Group]:
    index = {node: i for i, node in enumerate(program.placeholders)}
    nodes = {node.name: node for node in program.graph.nodes}
    groups: dict[Any, _Group] = {}
    for guard in program.guards:
        leaves: list[fx.Node] = []
        text = _expression(nodes[guard.node], leaves)
        group = groups.setdefault(
            (text, guard.taken), _Group(nodes[guard.node], tuple(leaves), guard.taken)
        )
        operands = tuple(index[leaf] for leaf in leaves)
        if operands not in group.operands:
            group.operands.append(operands)
    return list(groups.values())


def _expression(value: Any, leaves: list[fx.Node]) -> str:
    """What a node computes, as text; its inputs are numbered in the order they are met."""
    if isinstance(value, fx.Node):
        if value.op == "placeholder":
            if value not in leaves:
                leaves.append(value)
            return f"${leaves.index(value)}"
        if value.op == "get_attr":
            return f"constant {value.target}"
        parts = [_expression(arg, leaves) for arg in value.args]
        parts += [f"{key}={_expression(arg, leaves)}" for key, arg in value.kwargs.items()]
        return f"{value._pretty_print_target(value.target)}({', '.join(parts)})"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_expression(item, leaves) for item in value)}]"
    return repr(value)
