"""One entry of a schedule: a stage does something with a micro-batch.

2F0    stage 2, forward of micro-batch 0
1R3    stage 1 computes the activations of micro-batch 3 again
1B3    stage 1, backward of micro-batch 3
0U     stage 0 updates its weights
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from pantile.errors import ScheduleError

_WRITTEN = re.compile(r"(\d+)([FRB])(\d+)|(\d+)U")


class Kind(Enum):
    """What is done."""

    FORWARD = "F"
    RECOMPUTE = "R"
    BACKWARD = "B"
    UPDATE = "U"


@dataclass(frozen=True)
class Action:
    """A stage, what it does, and with which micro-batch; an update is of none."""

    kind: Kind
    stage: int
    micro_batch: int | None = None

    def __str__(self) -> str:
        number = "" if self.micro_batch is None else self.micro_batch
        return f"{self.stage}{self.kind.value}{number}"

    @staticmethod
    def parse(text: str) -> Action:
        """The action written as `text`."""
        found = _WRITTEN.fullmatch(text)
        if found is None:
            raise ScheduleError(
                f"{text!r} is not an action",
                fix="write stage, letter, micro-batch (2F0, 1R3, 1B3), or stage and U (0U)",
            )
        stage, letter, micro_batch, updated = found.groups()
        if updated is not None:
            return Action(Kind.UPDATE, int(updated))
        return Action(Kind(letter), int(stage), int(micro_batch))


def forward(stage: int, micro_batch: int) -> Action:
    """The forward of a micro-batch on a stage."""
    return Action(Kind.FORWARD, stage, micro_batch)


def recompute(stage: int, micro_batch: int) -> Action:
    """Activations of a micro-batch, computed again on a stage."""
    return Action(Kind.RECOMPUTE, stage, micro_batch)


def backward(stage: int, micro_batch: int) -> Action:
    """The backward of a micro-batch on a stage."""
    return Action(Kind.BACKWARD, stage, micro_batch)


def update(stage: int) -> Action:
    """The update of a stage's weights."""
    return Action(Kind.UPDATE, stage)
