"""What lies in the memory of each IPU, and whether it fits.

    always live       weights, gradient accumulators, optimizer state, activations waiting for
                      their backward (the stash), code
    not always live   activations of the unit that runs, pieces of the largest product

The stash of stage i in a pipeline of P holds 2 (P - 1 - i) + 1 micro-batches: so many are under way
between a forward and its backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pantile.machine.targets import Chip
from pantile.machine.timing import Configuration
from pantile.machine.units import Parameter, Unit

Verdict = Literal["fits", "borderline", "does not fit"]
_COMFORTABLE = 0.9
_SMALLEST_SHARE = 128
"""Bytes of a tensor that a tile gets at least: small tensors are not spread over all tiles."""


@dataclass(frozen=True)
class StageMemory:
    """Bytes on one IPU."""

    weights: int
    buffers: int
    accumulators: int
    gradients: int
    optimizer_state: int
    stash: int
    activations: int
    temporary: int
    code: int
    exchange_code: int
    vertex_state: int

    @property
    def always_live(self) -> int:
        """What stays from step to step."""
        held = self.weights + self.buffers + self.accumulators + self.optimizer_state + self.stash
        return held + self.fixed

    @property
    def not_always_live(self) -> int:
        """What comes and goes within a step, at its most."""
        return self.gradients + self.activations + self.temporary

    @property
    def fixed(self) -> int:
        """Code and state of vertices, the same on every tile."""
        return self.code + self.exchange_code + self.vertex_state

    @property
    def total(self) -> int:
        """All of it."""
        return self.always_live + self.not_always_live

    def fullest_tile(self, chip: Chip) -> float:
        """Bytes on the fullest tile: data is not spread quite evenly."""
        spread = (self.total - self.fixed) / chip.tiles * chip.tile_imbalance
        return spread + self.fixed / chip.tiles

    def fraction(self, chip: Chip) -> float:
        """How full the fullest tile is."""
        return self.fullest_tile(chip) / chip.memory_bytes_per_tile

    def parts(self) -> dict[str, int]:
        """Bytes by category."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def memory_of(stages: Sequence[Sequence[Unit]], configuration: Configuration) -> list[StageMemory]:
    """The memory of each IPU of a pipeline."""
    return [_stage(stages, index, configuration) for index in range(len(stages))]


def verdict_of(memories: Sequence[StageMemory], chip: Chip) -> Verdict:
    """Whether the fullest tile of any IPU has room."""
    worst = max(memory.fraction(chip) for memory in memories)
    if worst > 1.0:
        return "does not fit"
    return "borderline" if worst > _COMFORTABLE else "fits"


def weights_of(units: Sequence[Unit]) -> list[Parameter]:
    """The parameters of some units, each once."""
    return list({p.name: p for unit in units for p in unit.parameters}.values())


def stash_of(stages: Sequence[Sequence[Unit]], index: int, configuration: Configuration) -> int:
    """Bytes that wait for their backward on one IPU."""
    if not configuration.training:
        return 0
    units, last = stages[index], len(stages) - 1
    waiting = 2 * (last - index) + 1
    arriving = stages[index - 1][-1].border_bytes if index else 0
    inputs = sum(unit.input_bytes for unit in units)
    if configuration.recompute == "none" or (configuration.recompute == "stage" and index == last):
        return waiting * (arriving + inputs + sum(unit.saved_bytes for unit in units))
    if configuration.recompute == "stage":
        return waiting * (arriving + inputs)
    ends = [a.border_bytes for a, b in pairwise(units) if a.group != b.group]
    return waiting * (arriving + inputs + sum(ends))


def live_of(units: Sequence[Unit], configuration: Configuration, *, last: bool) -> tuple[int, int]:
    """Bytes of values and of pieces of products while the busiest unit runs.

    What is recomputed is there as a whole until its backward is done: a layer, or the stage.
    """
    kind = configuration.recompute if configuration.training else "none"
    groups: dict[str, int] = {}
    for unit in units:
        group = unit.group if kind == "layer" else "stage"
        groups[group] = groups.get(group, 0) + unit.saved_bytes
    if kind == "none" or (kind == "stage" and last):
        groups = dict.fromkeys(groups, 0)

    def live(unit: Unit) -> tuple[int, int]:
        others = groups[unit.group if kind == "layer" else "stage"] - unit.saved_bytes
        return unit.peak_bytes + max(0, others), unit.temporary_bytes

    return max((live(unit) for unit in units), key=sum, default=(0, 0))


def _stage(
    stages: Sequence[Sequence[Unit]], index: int, configuration: Configuration
) -> StageMemory:
    units, chip = stages[index], configuration.system.chip
    weights = weights_of(units)
    trained = [p for p in weights if p.trained] if configuration.training else []
    accumulating = configuration.accumulation > 1
    width = configuration.accumulator_bytes
    sums = sum(p.elements * width if width else p.bytes for p in trained)
    largest = max((p.bytes for p in trained if not p.lookup), default=0)
    alive, temporary = live_of(units, configuration, last=index == len(stages) - 1)
    return StageMemory(
        sum(p.bytes for p in weights),
        sum(unit.buffer_bytes for unit in units),
        sums if accumulating else 0,
        largest if accumulating else sum(p.bytes for p in trained),
        _state(trained, configuration),
        stash_of(stages, index, configuration),
        alive,
        temporary,
        chip.code_bytes_per_tile * chip.tiles,
        chip.exchange_code_bytes_per_tile * chip.tiles,
        chip.vertex_state_bytes_per_tile * chip.tiles,
    )


def _state(trained: Sequence[Parameter], configuration: Configuration) -> int:
    """Optimizer state that is on the chip; off it, room for the largest tensor's is needed."""
    shards = configuration.replicas if configuration.sharded_state else 1
    per_weight = configuration.optimizer.bytes_per_weight
    if configuration.state_off_chip:
        return max((p.elements for p in trained), default=0) * per_weight // shards
    return sum(p.elements for p in trained) * per_weight // shards


def tile_map(tensors: Sequence[int], tiles: int, even: int = 0) -> NDArray[np.int64]:
    """Bytes on each tile when tensors of these sizes are laid one after the other over the tiles.

    Each takes as many tiles as it has shares of 128 bytes, beginning where the one before ended;
    `even` is on every tile.
    """
    load = np.full(tiles + 1, 0, dtype=np.int64)
    start, whole = 0, 0
    for size in tensors:
        used = min(tiles, max(1, -(-size // _SMALLEST_SHARE)))
        share = -(-size // used)
        if used == tiles:
            whole += share
            continue
        end = start + used
        load[start] += share
        if end <= tiles:
            load[end] -= share
        else:
            load[tiles] -= share
            load[0] += share
            load[end - tiles] -= share
        start = end % tiles
    return np.cumsum(load[:tiles]) + whole + even
