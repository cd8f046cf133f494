"""What to change when a program does not fit: each change tried, ranked by what it frees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pantile.machine.memory import StageMemory, memory_of
from pantile.machine.timing import Configuration, time_of
from pantile.machine.units import Unit


@dataclass(frozen=True)
class Change:
    """One change: what it frees on the fullest IPU, and what it costs in time."""

    what: str
    how: str
    freed_bytes: int
    fraction: float
    slowdown: float

    @property
    def enough(self) -> bool:
        """Whether the program fits with this change alone."""
        return self.fraction <= 1.0


def changes_for(
    stages: Sequence[Sequence[Unit]], configuration: Configuration, *, proportion: float = 0.6
) -> list[Change]:
    """The changes that free something, the ones that free most first."""
    chip = configuration.system.chip
    before = memory_of(stages, configuration)
    worst = max(range(len(before)), key=lambda i: before[i].fraction(chip))
    now = time_of(stages, configuration).seconds / configuration.samples
    found = []
    for what, how, changed, other in _trials(stages, configuration, proportion):
        after = memory_of(changed, other)
        freed = before[worst].total - after[min(worst, len(after) - 1)].total
        if freed <= 0:
            continue
        fraction = max(memory.fraction(chip) for memory in after)
        then = time_of(changed, other).seconds / other.samples
        found.append(Change(what, how, freed, fraction, then / now if now else 1.0))
    return sorted(found, key=lambda change: (not change.enough, -change.freed_bytes))


def largest_holders(memory: StageMemory, units: Sequence[Unit], count: int = 5) -> list[str]:
    """What takes most of an IPU's memory, with the source lines of the units."""
    rows = [(unit.saved_bytes, f"activations of {unit.name}", unit.source) for unit in units]
    rows += [(p.bytes, f"weight {p.name}", unit.source) for unit in units for p in unit.parameters]
    rows.sort(key=lambda row: -row[0])
    return [f"{name}: {_size(size)} ({source or 'no line'})" for size, name, source in rows[:count]]


def _size(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


Trial = tuple[str, str, Sequence[Sequence[Unit]], Configuration]


def _trials(
    stages: Sequence[Sequence[Unit]], now: Configuration, proportion: float
) -> Iterator[Trial]:
    if now.training and now.recompute == "none":
        how = 'options._Popart.set("autoRecomputation", 3)'
        yield "recompute activations", how, stages, replace(now, recompute="stage")
    if now.training and now.recompute == "layer":
        how = "remove poptorch.recomputationCheckpoint from the layers"
        yield "keep only the inputs of stages", how, stages, replace(now, recompute="stage")
    if now.training and not now.state_off_chip and now.optimizer.bytes_per_weight:
        how = "TensorLocationSettings().useOnChipStorage(False) for the optimizer state"
        yield "optimizer state off chip", how, stages, replace(now, state_off_chip=True)
    if now.training and now.replicas > 1 and not now.sharded_state:
        how = "TensorLocationSettings().useReplicatedTensorSharding(True) for the optimizer state"
        yield "shard the optimizer state", how, stages, replace(now, sharded_state=True)
    if now.training and now.accumulator_bytes == 4:
        how = "accum_type=torch.float16 in the optimizer"
        yield "accumulate in float16", how, stages, replace(now, accumulator_bytes=2)
    half = proportion / 2
    limit = int(half * now.system.chip.memory_bytes)
    small = [[replace(u, temporary_bytes=min(u.temporary_bytes, limit)) for u in s] for s in stages]
    how = f'options.setAvailableMemoryProportion({{"IPU0": {half:.2g}, …}})'
    yield f"lower the available memory proportion to {half:.2g}", how, small, now
    if now.micro_batch > 1:
        fewer = replace(now, micro_batch=now.micro_batch // 2, accumulation=now.accumulation * 2)
        how = f"micro-batch {fewer.micro_batch}, gradient accumulation {fewer.accumulation}"
        ratio = fewer.micro_batch / now.micro_batch
        shrunk = [[with_batch(unit, ratio) for unit in stage] for stage in stages]
        yield "halve the micro-batch", how, shrunk, fewer
    longest = max(range(len(stages)), key=lambda i: sum(u.saved_bytes for u in stages[i]))
    if len(stages[longest]) > 1:
        middle = len(stages[longest]) // 2
        parts = [*stages[:longest], stages[longest][:middle], stages[longest][middle:]]
        how = f"begin another block at {stages[longest][middle].name}"
        yield "one more IPU", how, [*parts, *stages[longest + 1 :]], now


def with_batch(unit: Unit, ratio: float) -> Unit:
    """A unit with a smaller micro-batch; half the rows take more than half the time."""
    effort = 0.15 + 0.85 * ratio
    return replace(
        unit,
        forward=unit.forward * effort,
        backward=unit.backward * effort,
        input_bytes=int(unit.input_bytes * ratio),
        border_bytes=int(unit.border_bytes * ratio),
        saved_bytes=int(unit.saved_bytes * ratio),
        peak_bytes=int(unit.peak_bytes * ratio),
    )
