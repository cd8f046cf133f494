"""The micro-batches in flight: their inputs, and the values that travel between pieces.

A value is held from the piece that sends it to the last piece that reads it, so a pipeline keeps
only the activations that its schedule has in flight.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from pantile.passes.split_stages import Key
from pantile.runtime.pipeline.draws import States, drawing
from pantile.runtime.pipeline.plan import Plan


@dataclass
class Job:
    """One micro-batch of one replica: the inputs of the whole program, and what became of it."""

    values: Sequence[Any]
    deliver: Callable[[int, Any], None]
    states: States | None = None
    edges: dict[str, Any] = field(default_factory=dict)
    begin: float = 0.0
    end: float = 0.0
    _reads_left: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, plan: Plan, key: Key) -> None:
        """Run one piece: read its edges, keep what it sends, deliver what it returns."""
        piece = plan.split.pieces.get(key)
        if piece is None:
            return
        self.begin = self.begin or perf_counter()
        values = [self.values[i] for i in piece.state]
        values += [self.edges[name] for name in piece.edges]
        with drawing(self.states):
            results = plan.executables[key].run(values)
        count = len(piece.returns)
        for place, result in zip(piece.returns, results[:count], strict=True):
            self.deliver(place, result)
        with self._lock:
            self._release(piece.edges)
            for name, value in zip(piece.sends, results[count:], strict=True):
                self.edges[name] = value
                self._reads_left[name] = len(plan.split.readers[name])
        self.end = perf_counter()

    def _release(self, names: Sequence[str]) -> None:
        for name in names:
            self._reads_left[name] -= 1
            if not self._reads_left[name]:
                del self.edges[name], self._reads_left[name]
