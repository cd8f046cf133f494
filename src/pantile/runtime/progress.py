"""The bar that is shown while a model compiles, and the time it took.

Nothing is shown for a compilation that is over before anybody could have wondered.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from tqdm import tqdm

_SHOW_AFTER_SECONDS = 0.5


class CompileProgress:
    """Shows named phases; remembers how long the latest compilation took."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._bar: Any = None
        self.elapsed: timedelta | None = None

    @contextmanager
    def compiling(self, name: str) -> Iterator[None]:
        """A compilation from here to the end of the scope."""
        begin = time.perf_counter()
        self._bar = tqdm(
            total=100,
            desc=f"Graph compilation ({name})",
            delay=_SHOW_AFTER_SECONDS,
            disable=not self._shown,
            bar_format="{desc}: {percentage:3.0f}%|{bar:30}| {elapsed} {postfix}",
        )
        try:
            yield
            self._bar.update(100 - self._bar.n)
        finally:
            self._bar.close()
            self._bar = None
            self.elapsed = timedelta(seconds=time.perf_counter() - begin)

    def phase(self, name: str, percent: int) -> None:
        """A phase begins, `percent` of the work being done."""
        if self._bar is not None:
            self._bar.set_postfix_str(name, refresh=False)
            self._bar.update(percent - self._bar.n)
