"""Which operators of a program have no rule: found by trying, and left to torch.

    generate ── Refused at %svd ──▶ generate, %svd left ── Refused at %fft ──▶ … ──▶ a program

Not the operators of a decomposition are left but those of the program that they come from: one call
instead of many, of code that torch has tested.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from pantile.lowering.kernels.generate import planned, texts
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.writer import Writer
from pantile.lowering.segments.describe import described, described_node
from pantile.lowering.segments.worth import check_worth
from pantile.program.program import Program

aten = torch.ops.aten

_MOST_TRIES = 12

_TOGETHER = frozenset(
    {aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default},
)
"""Operators that hand each other what only they understand: all of them are ours, or none."""


_CHECKS = "it only checks values"


@dataclass(frozen=True, eq=False)
class Mixed:
    """A program of kernels and calls."""

    writer: Writer
    left: Mapping[fx.Node, str]
    """The operators that are left to torch, and why."""

    def texts(self) -> list[str]:
        """The C++ files."""
        return texts(self.writer)

    def calls(self) -> list[Mapping[str, Any]]:
        """What is called, in order of the calls."""
        return [described(call.what) for call in self._calls()]

    def facts(self) -> dict[str, Any]:
        """What runs where, and why."""
        if not self.left:
            return {"lowering": "kernels"}
        counted = Counter(
            (str(call.what.node.target), self.left[call.what.node]) for call in self._calls()
        )
        outside = [{"operator": name, "why": why, "calls": n} for (name, why), n in counted.items()]
        kernels = len(self.writer.functions) - counted.total()
        why = "; ".join(dict.fromkeys(why for why in self.left.values() if why != _CHECKS))
        return {"lowering": "segments", "why": why, "kernels": kernels, "outside": outside}

    def _calls(self) -> Iterator[Any]:
        return (function.call for function in self.writer.functions if function.call is not None)


def mixed(program: Program, constant: Collection[int], asked: str = "") -> Mixed:
    """Kernels and calls; Refused if that cannot be, or Inductor's code for all would be better.

    `asked` for are `kernels` without calls, or `segments` however many calls there are.
    """
    left: dict[fx.Node, str] = {}
    for _ in range(_MOST_TRIES):
        try:
            writer = planned(program, constant, left)
        except Refused as refusal:
            if asked == "kernels":
                raise
            left |= _newly_left(refusal, left, program)
            if asked != "segments":
                check_worth(left)
        else:
            return Mixed(writer, left)
    raise Refused(f"too many operators without a rule: {_names(left)}")


def _newly_left(
    refusal: Refused, left: Mapping[fx.Node, str], program: Program
) -> dict[fx.Node, str]:
    """The operators of the program that are to be left, too; Refused if they cannot be."""
    found: dict[fx.Node, str] = {}
    for node, why in refusal.at.items():
        origin = _whole(node.meta.get("origin") or node)
        if origin not in left:
            found[origin] = why
    if not found:
        raise refusal
    if any(node.target in _TOGETHER for node in found):
        why = next(why for node, why in found.items() if node.target in _TOGETHER)
        others = (node for node in program.graph.nodes if node.target in _TOGETHER)
        found |= {node: why for node in others if node not in left}
    found |= {node: _CHECKS for node in program.graph.nodes if _is_check(node) and node not in left}
    for node, why in found.items():
        if not _can_be_called(node):
            raise Refused(why) from refusal
    return found


def _can_be_called(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload) or node.target._schema.is_mutable:
        return False
    described_node(node)
    known = node.meta.get("val")
    if _is_check(node):
        return True
    several = isinstance(known, (tuple, list))
    used = [user.meta.get("val") for user in node.users] if several else [known]
    return all(isinstance(value, torch.Tensor) for value in used)


def _is_check(node: fx.Node) -> bool:
    """Does a node only look whether values are right, such as those of a factorisation?"""
    return isinstance(node.target, OpOverload) and not node.target._schema.returns


def _whole(node: fx.Node) -> fx.Node:
    """The operator that a result belongs to."""
    while node.target is operator.getitem:
        node = node.all_input_nodes[0]
    return node


def _names(left: Collection[fx.Node]) -> str:
    return ", ".join(sorted({str(node.target) for node in left}))
