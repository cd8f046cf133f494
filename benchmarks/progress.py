"""A bar for one measurement: which peer is being prepared, then the rounds."""

from __future__ import annotations

from types import TracebackType

from tqdm import tqdm


class Progress:
    """Written to stderr; leaves nothing behind when it is done."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._bar = tqdm(desc=title, total=None, leave=False, bar_format="{desc}")

    def stage(self, name: str) -> None:
        """Say what is being prepared."""
        self._bar.set_description_str(f"{self._title}: preparing {name}")

    def step(self, done: int, total: int) -> None:
        """Say how far the rounds are."""
        if done == 1:
            self._bar.close()
            self._bar = tqdm(desc=self._title, total=total, leave=False, unit="round")
        self._bar.update()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()
