"""The actions of a schedule on threads.

    schedule   ipu 0   0F0   0F1   0F2 0B0 …        thread 0
               ipu 1         1F0 1B0   …            thread 1

Each thread takes the actions of some devices in the order of the table, and waits for what an
action reads. All that an action waits for stands in an earlier cycle, or before it in its cell, so
the thread that is furthest behind can always go on: there is no deadlock. Values depend on what
an action reads and nothing else, so the number of threads changes no bit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import torch

from pantile.options.environment import pipeline_threads
from pantile.passes.split_stages import Key
from pantile.runtime.pipeline.edges import Job
from pantile.runtime.pipeline.plan import Plan
from pantile.schedule import Action, Kind, Schedule

Done = tuple[Key, int]
"""A piece and the micro-batch it ran for."""


def crew_size(schedule: Schedule) -> int:
    """How many threads: as many as have work at a time, and as the machine has cores for.

    Each may use all of torch's own threads. PANTILE_PIPELINE_THREADS overrides the cores.
    """
    busy = max(sum(map(bool, cells)) for cells in schedule.cycles)
    cores = len(os.sched_getaffinity(0))
    allowed = pipeline_threads() or cores // torch.get_num_threads()
    return max(1, min(busy, allowed))


def run_in_order(plan: Plan, job: Job) -> None:
    """All pieces of one micro-batch, as the unsplit program would run them."""
    for key in plan.split.pieces:
        job.run(plan, key)


def run_schedule(plan: Plan, schedule: Schedule, jobs: Sequence[Job]) -> None:
    """All actions but the update, which is for whoever has the gradients."""
    size = crew_size(schedule)
    crew = _Crew(plan, schedule, jobs)
    rows = _divided(schedule, size)
    if size == 1:
        for action in rows[0]:
            crew.execute(action)
        return
    crew.run(rows)


def _divided(schedule: Schedule, size: int) -> list[list[Action]]:
    """The actions of each thread: neighbouring devices share one."""
    count = len(schedule.devices)
    thread_of = {device: i * size // count for i, device in enumerate(schedule.devices)}
    rows: list[list[Action]] = [[] for _ in range(size)]
    for _, device, action in schedule.actions():
        if action.kind is not Kind.UPDATE:
            rows[thread_of[device]].append(action)
    return rows


class _Crew:
    """Threads that work on one schedule."""

    def __init__(self, plan: Plan, schedule: Schedule, jobs: Sequence[Job]) -> None:
        self._plan = plan
        self._schedule = schedule
        self._jobs = jobs
        self._order = {a: i for i, (_, _, a) in enumerate(schedule.actions())}
        self._done: set[Done] = set()
        self._failures: list[tuple[int, BaseException]] = []
        self._changed = threading.Condition()
        self._torch_threads = torch.get_num_threads()

    def execute(self, action: Action) -> None:
        """One action, now."""
        assert action.micro_batch is not None
        self._jobs[action.micro_batch].run(self._plan, (action.kind, action.stage))

    def run(self, rows: Sequence[Sequence[Action]]) -> None:
        """A thread for each row, this one for the first; then raise what went wrong first."""
        others = [
            threading.Thread(target=self._work, args=(row,), name=f"pantile stages {number}")
            for number, row in enumerate(rows)
            if number and row
        ]
        for thread in others:
            thread.start()
        try:
            self._work(rows[0])
        finally:
            for thread in others:
                thread.join()
        if self._failures:
            raise min(self._failures, key=lambda pair: pair[0])[1]

    def _work(self, row: Sequence[Action]) -> None:
        if torch.get_num_threads() != self._torch_threads:
            torch.set_num_threads(self._torch_threads)
        action = row[0] if row else None
        try:
            for action in row:
                if not self._wait_for(action):
                    return
                self.execute(action)
                self._note(action)
        except BaseException as failure:
            with self._changed:
                place = self._order[action] if action is not None else 0
                self._failures.append((place, failure))
                self._changed.notify_all()

    def _wait_for(self, action: Action) -> bool:
        """Wait until all is there that the action reads; False if somebody failed."""
        needed = self._needed(action)
        with self._changed:
            self._changed.wait_for(lambda: self._failures or needed <= self._done)
            return not self._failures

    def _needed(self, action: Action) -> set[Done]:
        assert action.micro_batch is not None
        number = action.micro_batch
        needed = {((a.kind, a.stage), number) for a in self._schedule.needed_by(action)}
        needed.update(
            (key, number)
            for key in self._plan.senders.get((action.kind, action.stage), frozenset())
        )
        return needed

    def _note(self, action: Action) -> None:
        assert action.micro_batch is not None
        with self._changed:
            self._done.add(((action.kind, action.stage), action.micro_batch))
            self._changed.notify_all()
