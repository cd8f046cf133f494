"""What each stage costs for one micro-batch, estimated from shapes.

    forward, recompute, backward    operations and bytes moved
    parameters                      bytes of the weights it reads
    kept                            bytes of activations it keeps for its backward
    sent                            bytes it sends to later stages

A stage's time is taken to be proportional to its operations. That is good enough to see which
stage is too large; it is no prediction of a time, here or on an IPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from pantile.logging import logger
from pantile.passes.split_stages import Key, Split
from pantile.program.aliases import aliased_placeholders
from pantile.program.estimate import Cost, cost_of, size_of, tensors_of
from pantile.program.spec import InputKind
from pantile.runtime.placement import Placement
from pantile.schedule import Kind, StageTimes

UNBALANCED = 0.5
"""Below this balance the IPUs would wait for the largest stage more than half of the time."""


@dataclass(frozen=True)
class StageCost:
    """The estimate of one stage."""

    stage: int
    ipu: int
    blocks: tuple[str, ...]
    forward: Cost
    recompute: Cost
    backward: Cost
    parameters: int
    kept: int
    sent: int

    @property
    def flops(self) -> int:
        """All operations for one micro-batch."""
        return self.forward.flops + self.recompute.flops + self.backward.flops

    @property
    def times(self) -> StageTimes:
        """Operations as times, in millions."""
        flops = (self.forward.flops, self.backward.flops, self.recompute.flops)
        return StageTimes(*(count / 1e6 for count in flops))

    def as_json(self) -> dict[str, Any]:
        """The figures as plain data."""
        costs = {k.name.lower(): c for k, c in self._by_kind().items()}
        return {
            "stage": self.stage,
            "ipu": self.ipu,
            "blocks": list(self.blocks),
            **{name: {"flops": c.flops, "bytes": c.bytes} for name, c in costs.items()},
            "parameter_bytes": self.parameters,
            "kept_bytes": self.kept,
            "sent_bytes": self.sent,
        }

    def _by_kind(self) -> dict[Kind, Cost]:
        return {
            Kind.FORWARD: self.forward,
            Kind.RECOMPUTE: self.recompute,
            Kind.BACKWARD: self.backward,
        }


def stage_costs(split: Split, placement: Placement) -> tuple[StageCost, ...]:
    """The estimate of every stage."""
    return tuple(_stage_cost(split, placement, stage) for stage in range(split.stages))


def _stage_cost(split: Split, placement: Placement, stage: int) -> StageCost:
    forward, recompute, backward = (
        _cost(split, (kind, stage)) for kind in (Kind.FORWARD, Kind.RECOMPUTE, Kind.BACKWARD)
    )
    kept, sent = _edges(split, stage)
    return StageCost(
        stage,
        placement.devices[stage],
        tuple(dict.fromkeys(t.block for t in placement.turns if t.stage == stage)),
        forward,
        recompute,
        backward,
        _parameters(split, stage),
        kept,
        sent,
    )


def _cost(split: Split, key: Key) -> Cost:
    piece = split.pieces.get(key)
    return Cost() if piece is None else cost_of(piece.program.graph.nodes)


def _parameters(split: Split, stage: int) -> int:
    piece = split.pieces.get((Kind.FORWARD, stage))
    if piece is None:
        return 0
    entries = zip(piece.program.placeholders, piece.program.inputs, strict=True)
    return sum(_size(node) for node, entry in entries if entry.kind is InputKind.PARAMETER)


def _edges(split: Split, stage: int) -> tuple[int, int]:
    """Bytes kept for backward, and bytes sent to later stages; views of weights are neither."""
    piece = split.pieces.get((Kind.FORWARD, stage))
    if piece is None:
        return 0, 0
    aliases = aliased_placeholders(piece.program.graph)
    kept = sent = 0
    for name, node in zip(piece.sends, piece.program.returned[len(piece.returns) :], strict=True):
        if node in aliases:
            continue
        readers = split.readers[name]
        kept += _size(node) if any(kind is not Kind.FORWARD for kind, _ in readers) else 0
        sent += _size(node) if any(kind is Kind.FORWARD for kind, _ in readers) else 0
    return kept, sent


def _size(node: fx.Node) -> int:
    return sum(map(size_of, tensors_of(node)))


def balance(costs: Sequence[StageCost]) -> float:
    """The mean of the IPUs' work over the largest: 1 if all have the same to do."""
    work: dict[int, int] = {}
    for cost in costs:
        work[cost.ipu] = work.get(cost.ipu, 0) + cost.flops
    largest = max(work.values())
    return sum(work.values()) / len(work) / largest if largest else 1.0


def cost_table(costs: Sequence[StageCost]) -> str:
    """The estimates as a table."""
    rows = [
        ["stage", "ipu", "blocks", "forward", "recompute", "backward", "weights", "kept", "sent"]
    ]
    total = sum(cost.flops for cost in costs) or 1
    rows[0].append("share")
    for c in costs:
        flops = (_flops(part.flops) for part in (c.forward, c.recompute, c.backward))
        sizes = (_bytes(size) for size in (c.parameters, c.kept, c.sent))
        share = f"{100 * c.flops / total:.0f} %"
        rows.append([str(c.stage), str(c.ipu), " ".join(c.blocks) or "-", *flops, *sizes, share])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place == 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def tell_balance(costs: Sequence[StageCost], *, strict: bool) -> None:
    """Say that a placement is unbalanced: a warning to those who will run on IPUs."""
    share = balance(costs)
    if share < UNBALANCED:
        tell = logger.warning if strict else logger.info
        tell(
            "The stages are unbalanced: the IPUs would be busy for %d %% of the time at most. "
            "Estimated from shapes:\n%s",
            round(100 * share),
            cost_table(costs),
        )


def _flops(count: float) -> str:
    return _scaled(count, 1000, ("", " k", " M", " G", " T"), "flop")


def _bytes(count: float) -> str:
    return _scaled(count, 1024, ("", " Ki", " Mi", " Gi", " Ti"), "B")


def _scaled(count: float, base: int, prefixes: Sequence[str], unit: str) -> str:
    place = 0
    while count >= base and place < len(prefixes) - 1:
        count, place = count / base, place + 1
    prefix = prefixes[place] or " "
    return f"{count:.3g}{prefix}{unit}"
