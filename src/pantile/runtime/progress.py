"""The bar that is shown while a model compiles, and the time it took.

Nothing is shown for a compilation that is over before anybody could have wondered.
"""

from __future__ import annotations

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


class CompileProgress:
    """Shows named phases; remembers how long each took, and the latest compilation."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._bar: Any = None
        #: Called with the percentage done, over capture and native compilation together.
        self.listener: Callable[[int], None] | None = None
        self._stretch = (0, 100)
        self.timeline = HostTimeline()
        self._begun: tuple[str, float] | None = None
        self.elapsed: timedelta | None = None

    @contextmanager
    def compiling(self, name: str, *, shown: bool = True, more: bool = False) -> Iterator[None]:
        """A compilation from here to the end of the scope; `more` adds to the latest one's time."""
        begin = time.perf_counter()
        before = self.elapsed if more and self.elapsed is not None else timedelta()
        self._stretch = (_CAPTURED, 100) if more else (0, _CAPTURED)
        self._bar = tqdm(
            total=100,
            desc=f"Graph compilation ({name})",
            delay=_SHOW_AFTER_SECONDS,
            disable=not (self._shown and shown),
            bar_format="{desc}: {percentage:3.0f}%|{bar:30}| {elapsed} {postfix}",
        )
        try:
            yield
            self._bar.update(100 - self._bar.n)
        finally:
            self._end_phase()
            self._bar.close()
            self._bar = None
            self.elapsed = before + timedelta(seconds=time.perf_counter() - begin)

    def named_phase(self, name: str) -> None:
        """A phase of the native compilation begins."""
        self.phase(name, _PHASES.get(name, 50))

    def phase(self, name: str, percent: int) -> None:
        """A phase begins, `percent` of the work being done."""
        self._end_phase()
        self._begun = (name, time.perf_counter())
        if self._bar is not None:
            self._bar.set_postfix_str(name, refresh=False)
            self._bar.update(max(0, percent - self._bar.n))
        if self.listener is not None:
            first, last = self._stretch
            self.listener(first + percent * (last - first) // 100)

    def _end_phase(self) -> None:
        if self._begun is not None:
            name, begin = self._begun
            self.timeline.note("compile", name, begin, time.perf_counter())
            self._begun = None
