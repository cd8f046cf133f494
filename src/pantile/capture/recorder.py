"""What capture hears from the ops while forward runs: losses, blocks, hints.

Blocks become stages. What runs from the beginning of a block to the beginning of the next is a
turn; its number is written into the metadata of every node that is recorded
(`torch.fx.traceback.annotate`), and backward nodes find theirs through the sequence number they
share with the forward op they belong to. Turns are numbered from 1; 0 is what runs before the
first block. A block that begins twice has two turns:

    forward       embed   layer   embed
    turns         1       2       3
    activations   1       2       1         the number of the block, in the order of first meeting
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.fx import traceback as fx_traceback

from pantile.capture.scopes import ScopeMarks

OUTSIDE = -1
"""The turn of no block: a `Block` scope was left and no other block has begun."""

UNKNOWN = -2
"""The turn of a backward node whose forward op is not known."""


class CaptureRecorder:
    """Implements `pantile.ops.context.Recorder`."""

    def __init__(self, *, strict: bool, training: bool) -> None:
        self.strict = strict
        self.training = training
        self.marked_losses: list[torch.Tensor] = []
        self.blocks: list[tuple[str, int | None]] = []
        self.activations: list[int] = []
        self.hints: list[tuple[torch.Tensor, str, dict[str, Any]]] = []
        self.scopes = ScopeMarks()
        self._annotation: AbstractContextManager[None] | None = None

    def mark_loss(self, tensor: torch.Tensor) -> None:
        """`tensor` is the result of an `identity_loss`."""
        self.marked_losses.append(tensor)

    def begin_block(self, user_id: str, ipu_id: int | None) -> None:
        """Ops from here on belong to this block."""
        if (user_id, ipu_id) not in self.blocks:
            self.blocks.append((user_id, ipu_id))
        self.activations.append(self.blocks.index((user_id, ipu_id)) + 1)
        self._annotate(len(self.activations))

    def end_block(self) -> None:
        """No block is active until the next `begin_block`."""
        self._annotate(OUTSIDE)

    def _annotate(self, turn: int) -> None:
        self.close()
        self._annotation = fx_traceback.annotate({"turn": turn})
        self._annotation.__enter__()

    def close(self) -> None:
        """Stop annotating."""
        if self._annotation is not None:
            self._annotation.__exit__(None, None, None)
            self._annotation = None

    def mark(self, tensor: torch.Tensor, kind: str, **details: Any) -> None:
        """`tensor` carries a hint that does not change its value."""
        self.hints.append((tensor, kind, details))

    def push_scope(self, kind: str, value: Any) -> None:
        """Ops from here on carry `value`."""
        self.scopes.push(kind, value)

    def pop_scope(self, kind: str) -> None:
        """Undo the latest `push_scope` of that kind."""
        self.scopes.pop(kind)
