"""The best way to run a program on a pod: stages, recomputation, replicas, micro-batches.

    for each number of stages 1 … 64 that the pod has room for
        cut the units so that the slowest stage is as fast as it can be     (balance by time)
        check the memory of every stage; if one is too full, move the cut   (balance by memory)
        try recomputation, sharded and off-chip optimizer state
    keep what is fastest among what fits

Cuts lie between units, at the start of a module, so that each can be written as a `BeginBlock`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from pantile.errors import Error
from pantile.machine.memory import StageMemory, memory_of, verdict_of
from pantile.machine.timing import Configuration, Recompute, Timing, time_of
from pantile.machine.units import Unit

MOST_STAGES = 64
_ROOMY = 0.95
"""The model of memory is not exact: a plan that leaves some room is preferred."""
_RECOMPUTE: tuple[Recompute, ...] = ("none", "stage", "layer")


@dataclass(frozen=True)
class Plan:
    """One way to run a program."""

    stages: tuple[tuple[Unit, ...], ...]
    configuration: Configuration
    timing: Timing
    memory: tuple[StageMemory, ...]

    @property
    def ipus(self) -> int:
        """IPUs of all replicas."""
        return len(self.stages) * self.configuration.replicas

    @property
    def fits(self) -> bool:
        """Whether every IPU has room."""
        return verdict_of(self.memory, self.configuration.system.chip) != "does not fit"

    @property
    def fullest(self) -> float:
        """How full the fullest tile is."""
        chip = self.configuration.system.chip
        return max(memory.fraction(chip) for memory in self.memory)

    @property
    def samples_per_second(self) -> float:
        """Throughput of the whole system."""
        return self.timing.samples_per_second


def evaluate(stages: Sequence[Sequence[Unit]], configuration: Configuration) -> Plan:
    """Time and memory of one way."""
    return Plan(
        tuple(tuple(stage) for stage in stages),
        configuration,
        time_of(stages, configuration),
        tuple(memory_of(stages, configuration)),
    )


def plans_for(
    units: Sequence[Unit],
    configuration: Configuration,
    *,
    batch: int | None = None,
    stage_counts: Sequence[int] | None = None,
    recompute: Sequence[Recompute] = _RECOMPUTE,
) -> list[Plan]:
    """Every way that was tried, the best first: what fits before what does not.

    `batch` is the number of samples of a weight update: accumulation and replicas share it.
    """
    if not units:
        raise Error("the program has no ops to place", fix="plan a model that computes something")
    samples = batch or configuration.samples
    found = []
    for count in stage_counts or _stage_counts(len(units), configuration):
        for kind, sharded, off_chip in _choices(configuration, recompute):
            trial = replace(
                _spread(configuration, count, samples),
                recompute=kind,
                sharded_state=sharded,
                state_off_chip=off_chip,
            )
            if not trial.training or trial.accumulation >= 2 * count - 1:
                found.append(evaluate(_cut(units, count, trial), trial))
    if not found:
        raise Error(
            f"a batch of {samples} is too small for a pipeline of "
            f"{min(stage_counts or [1])} stages with micro-batches of {configuration.micro_batch}",
            fix="make the batch larger, or the micro-batch smaller",
        )
    return ranked(found)


def ranked(plans: Sequence[Plan]) -> list[Plan]:
    """What fits with room to spare, what just fits, what does not; in each the fastest first."""
    return sorted(plans, key=lambda plan: (not plan.fits, plan.fullest > _ROOMY, _rank(plan)))


def _rank(plan: Plan) -> tuple[float, ...]:
    """Fastest first; among what does not fit, the least full."""
    chosen = plan.configuration
    if not plan.fits:
        return (plan.fullest,)
    # Within half a percent the plainer way is better.
    speed = -round(plan.samples_per_second / 1.005, 3 - len(str(int(plan.samples_per_second))))
    return (speed, len(plan.stages), chosen.sharded_state + chosen.state_off_chip)


def _stage_counts(units: int, configuration: Configuration) -> list[int]:
    """Powers of two would waste no IPU, but any number up to the pod's is possible."""
    most = min(MOST_STAGES, units, configuration.system.ipus)
    return [n for n in range(1, most + 1) if n <= 8 or n & (n - 1) == 0 or n == most]


def _choices(
    configuration: Configuration, recompute: Sequence[Recompute]
) -> Iterator[tuple[Recompute, bool, bool]]:
    if not configuration.training:
        yield "none", False, False
        return
    stateful = configuration.optimizer.bytes_per_weight > 0
    for kind, sharded, off in product(recompute, (False, True), (False, True)):
        if (sharded or off) and not stateful:
            continue
        yield kind, sharded, off


def _spread(configuration: Configuration, count: int, samples: int) -> Configuration:
    """As many replicas as there are IPUs for, and the accumulation that keeps the batch."""
    replicas = max(1, configuration.system.ipus // count)
    replicas = 1 << (replicas.bit_length() - 1)
    # A pipeline in training needs an accumulation of at least 2 P - 1 to be filled.
    least = 2 * count - 1 if configuration.training else 1
    while replicas > 1 and configuration.micro_batch * replicas * least > samples:
        replicas //= 2
    accumulation = max(1, round(samples / (configuration.micro_batch * replicas)))
    if not configuration.training:
        accumulation = configuration.accumulation
    return replace(configuration, replicas=replicas, accumulation=accumulation)


def _cut(units: Sequence[Unit], count: int, configuration: Configuration) -> list[list[Unit]]:
    """Cut for time; while an IPU is too full, let bytes weigh more."""
    chip = configuration.system.chip
    seconds = [_work(unit, configuration) for unit in units]
    bytes_held = [_held(unit, configuration) for unit in units]
    scale = sum(seconds) / max(1.0, sum(bytes_held))
    best: tuple[float, list[list[Unit]]] | None = None
    for weight in (0.0, 0.25, 0.5, 1.0, 2.0):
        costs = [s + weight * scale * b for s, b in zip(seconds, bytes_held, strict=True)]
        stages = _balanced(units, costs, count)
        worst = max(memory.fraction(chip) for memory in memory_of(stages, configuration))
        if worst <= 1.0:
            return stages
        if best is None or worst < best[0]:
            best = (worst, stages)
    assert best is not None
    return best[1]


def _work(unit: Unit, configuration: Configuration) -> float:
    if not configuration.training:
        return unit.forward
    again = unit.forward if configuration.recompute != "none" else 0.0
    return unit.forward + again + unit.backward + unit.accumulate


def _held(unit: Unit, configuration: Configuration) -> float:
    width = 2 if configuration.training else 1
    kept = unit.saved_bytes if configuration.recompute == "none" else unit.border_bytes
    return float(width * sum(p.bytes for p in unit.parameters) + kept)


def _balanced(units: Sequence[Unit], costs: Sequence[float], count: int) -> list[list[Unit]]:
    """Cut into `count` runs so that the dearest costs as little as possible (binary search)."""
    low, high = max(costs), sum(costs)
    for _ in range(40):
        middle = (low + high) / 2
        if _pieces_needed(costs, middle) <= count:
            high = middle
        else:
            low = middle
    return _fill(units, costs, high * (1 + 1e-9), count)


def _pieces_needed(costs: Sequence[float], limit: float) -> int:
    pieces, spent = 1, 0.0
    for cost in costs:
        if spent + cost > limit:
            pieces, spent = pieces + 1, 0.0
        spent += cost
    return pieces


def _fill(
    units: Sequence[Unit], costs: Sequence[float], limit: float, count: int
) -> list[list[Unit]]:
    """Fill the runs one after the other; the last ones get at least a unit each."""
    stages: list[list[Unit]] = [[]]
    spent = 0.0
    for index, (unit, cost) in enumerate(zip(units, costs, strict=True)):
        left = len(units) - index
        full = spent + cost > limit or left <= count - len(stages)
        if stages[-1] and full and len(stages) < count:
            stages.append([])
            spent = 0.0
        stages[-1].append(unit)
        spent += cost
    return stages
