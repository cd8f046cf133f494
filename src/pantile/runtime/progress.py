"""The bar that is shown while a model compiles, and the time it took.

Nothing is shown for a compilation that is over before anybody could have wondered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from tqdm import tqdm

from pantile.runtime.host_timeline import HostTimeline

_SHOW_AFTER_SECONDS = 0.5
_PHASES = {"lowering": 10, "C++ compile": 50, "tune": 85, "link": 95}
"""How much of a native compilation is done when a phase begins."""
_CAPTURED = 30
"""The percentage a listener is told when the program is captured and not compiled yet."""


class _Running(threading.local):
    """The compilation of this thread: one may go on in the background while another begins."""

    bar: Any = None
    stretch: tuple[int, int] = (0, 100)
    begun: tuple[str, float] | None = None


class CompileProgress:
    """Shows named phases; remembers how long each took, and the latest compilation."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._running = _Running()
        #: Called with the percentage done, over capture and native compilation together.
        self.listener: Callable[[int], None] | None = None
        self.timeline = HostTimeline()
        self.elapsed: timedelta | None = None

    @contextmanager
    def compiling(self, name: str, *, shown: bool = True, more: bool = False) -> Iterator[None]:
        """A compilation from here to the end of the scope; `more` adds to the latest one's time."""
        running, begin = self._running, time.perf_counter()
        before = self.elapsed if more and self.elapsed is not None else timedelta()
        running.stretch = (_CAPTURED, 100) if more else (0, _CAPTURED)
        running.bar = tqdm(
            total=100,
            desc=f"Graph compilation ({name})",
            delay=_SHOW_AFTER_SECONDS,
            disable=not (self._shown and shown),
            bar_format="{desc}: {percentage:3.0f}%|{bar:30}| {elapsed} {postfix}",
        )
        try:
            yield
            running.bar.update(100 - running.bar.n)
        finally:
            self._end_phase()
            running.bar.close()
            running.bar = None
            self.elapsed = before + timedelta(seconds=time.perf_counter() - begin)

    def named_phase(self, name: str) -> None:
        """A phase of the native compilation begins."""
        self.phase(name, _PHASES.get(name, 50))

    def phase(self, name: str, percent: int) -> None:
        """A phase begins, `percent` of the work being done."""
        self._end_phase()
        running = self._running
        running.begun = (name, time.perf_counter())
        if running.bar is not None:
            running.bar.set_postfix_str(name, refresh=False)
            running.bar.update(max(0, percent - running.bar.n))
        if self.listener is not None:
            first, last = running.stretch
            self.listener(first + percent * (last - first) // 100)

    def _end_phase(self) -> None:
        running = self._running
        if running.begun is not None:
            name, begin = running.begun
            self.timeline.note("compile", name, begin, time.perf_counter())
            running.begun = None
