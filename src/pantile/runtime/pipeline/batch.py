"""The micro-batches of a step in a pipeline: what goes in, and what comes out, in which order.

replica 0    0F0 0F1 1F0 …        replicas one after the other, each through the whole schedule
replica 1    0F0 0F1 1F0 …
then         results of (micro-batch 0, replica 0), (0, 1), (1, 0), …   as without a pipeline
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pantile.program.spec import OutputKind
from pantile.runtime.pipeline.crew import run_in_order, run_schedule
from pantile.runtime.pipeline.edges import Job
from pantile.runtime.pipeline.plan import Plan
from pantile.runtime.random import RandomStreams

Turn = tuple[int, int]
"""A micro-batch of a step: its device iteration and accumulation step."""

Times = tuple[float, float]
"""When it began and ended."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Micro-batches to run, and those who give and take.

    `values` gives the inputs of the whole program, `add` takes gradients by name, `keep` the user's
    outputs of a micro-batch that `wants` says are wanted.
    """

    plan: Plan
    replicas: int
    random: RandomStreams
    values: Callable[[int, int, int], Sequence[Any]]
    add: Callable[[int, int, Mapping[str, Any]], None]
    wants: Callable[[int, int], bool]
    keep: Callable[[int, int, int, Sequence[Any], Times], None]
    _kept: dict[tuple[Turn, int], dict[int, Any]] = field(default_factory=dict)

    def run(self, turns: Sequence[Turn]) -> None:
        """Run them all; deliver their results in order."""
        if self.plan.ordered:
            for turn in turns:
                for replica in range(self.replicas):
                    job = self._job(turn, replica)
                    with self._drawing(replica):
                        run_in_order(self.plan, job)
                    self._finish(turn, replica, job)
            return
        states = self._note_states(turns)
        schedule = self.plan.schedule(len(turns))
        jobs: dict[int, list[Job]] = {}
        for replica in range(self.replicas):
            jobs[replica] = [self._job(turn, replica) for turn in turns]
            for turn, job in zip(turns, jobs[replica], strict=True):
                job.states = states.get((turn, replica))
            run_schedule(self.plan, schedule, jobs[replica])
        for number, turn in enumerate(turns):
            for replica in range(self.replicas):
                self._finish(turn, replica, jobs[replica][number])

    def _note_states(self, turns: Sequence[Turn]) -> dict[tuple[Turn, int], Any]:
        """Prepare the draws of all micro-batches in the order of the unsplit program."""
        states = {}
        if self.plan.draws.nodes:
            for turn in turns:
                for replica in range(self.replicas):
                    with self._drawing(replica):
                        states[turn, replica] = self.plan.draws.note_states()
        return states

    def _drawing(self, replica: int) -> AbstractContextManager[None]:
        """The random numbers of the next micro-batch of a replica, if it draws any."""
        return self.random.micro_batch(replica) if self.plan.draws.nodes else nullcontext()

    def _job(self, turn: Turn, replica: int) -> Job:
        outputs = self.plan.split.program.outputs
        kept: dict[int, Any] = {}
        self._kept[turn, replica] = kept
        wanted = self.wants(*turn)

        def deliver(place: int, value: Any) -> None:
            entry = outputs[place]
            if entry.kind is OutputKind.GRADIENT:
                self.add(replica, turn[1], {entry.name: value})
            elif wanted:
                kept[place] = value

        return Job(self.values(*turn, replica), deliver)

    def _finish(self, turn: Turn, replica: int, job: Job) -> None:
        kept = self._kept.pop((turn, replica))
        self.keep(*turn, replica, [kept[place] for place in sorted(kept)], (job.begin, job.end))
