"""What forward said about its tensors without changing them: memory, splitting, overlap.

    y = set_available_memory(conv(x), 0.3)     Hint("available_memory", "aten.convolution.default",
                                                    (2, 4, 8), "model.py:12 …", {"proportion": 0.3})

No hint changes a number. They are kept for the machine model, and in strict mode marks of overlap
are checked as PopTorch checks them: an input that is marked may have no other reader, an output may
be returned once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pantile.capture.source import place_of_trace
from pantile.enums import OverlapMode
from pantile.errors import CaptureError

NodeOf = Callable[[torch.Tensor], fx.Node | None]
Marked = tuple[torch.Tensor, str, dict[str, Any]]


@dataclass(frozen=True)
class Hint:
    """One thing said about the result of one op. `op` is "input" for an argument of forward."""

    kind: str
    op: str
    shape: tuple[int, ...]
    source: str
    details: Mapping[str, Any]

    @property
    def overlaps(self) -> bool:
        """Whether a transfer is to run beside compute."""
        marked = self.kind in ("overlap_input", "overlap_output")
        return marked and self.details["mode"] is not OverlapMode.NoOverlap


def settled_hints(marked: Sequence[Marked], node_of: NodeOf) -> tuple[Hint, ...]:
    """The hints of a capture, with the ops they are about."""
    found = []
    for tensor, kind, details in marked:
        node = node_of(tensor)
        if node is None:
            continue
        made = _origin(node) if kind in ("overlap_input", "overlap_output") else node
        op = "input" if made.op == "placeholder" else str(made.target)
        source = place_of_trace(node.meta.get("stack_trace"))
        found.append(Hint(kind, op, tuple(tensor.shape), source, dict(details)))
    return tuple(found)


def check_overlap_marks(
    marked: Sequence[Marked], returned: Sequence[torch.Tensor], node_of: NodeOf
) -> None:
    """Refuse marks that PopTorch refuses, before anything else is added to the graph."""
    outputs = [node_of(tensor) for tensor in returned]
    for tensor, kind, _ in marked:
        node = node_of(tensor)
        if kind == "overlap_input":
            _check_input(node)
        elif kind == "overlap_output":
            _check_output(node, outputs)


def _check_input(node: fx.Node | None) -> None:
    source = None if node is None else _origin(node)
    if source is None or source.op != "placeholder":
        raise CaptureError(
            "poptorch.set_overlap_for_input applied on a node which is not a tensor input to "
            "the model.",
            fix="apply it to an argument of forward, before anything else",
        )
    if len(source.users) > 1:
        raise CaptureError(
            "poptorch.set_overlap_for_input must be the only op applied to an input. Other ops "
            f"that read it: {len(source.users) - 1}",
            fix="use the returned tensor in their place",
        )


def _check_output(node: fx.Node | None, outputs: Sequence[fx.Node | None]) -> None:
    if node is None or node not in outputs:
        raise CaptureError(
            "poptorch.set_overlap_for_output applied on a node which is not a tensor output "
            "to the model.",
            fix="apply it to tensors just before they are returned",
        )
    if sum(output is node or output is _origin(node) for output in outputs) > 1:
        raise CaptureError(
            "poptorch.set_overlap_for_output cannot be used with a tensor that is returned twice.",
            fix="return it once, or return a clone",
        )


def _origin(node: fx.Node) -> fx.Node:
    """The node under the mark, which is an alias of it."""
    if node.target is torch.ops.aten.alias.default and isinstance(node.args[0], fx.Node):
        return node.args[0]
    return node
