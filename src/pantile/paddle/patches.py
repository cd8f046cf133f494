"""Replaced attributes, noted so that they can be put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ABSENT = object()


class Patches:
    """What was replaced, in order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute; `undo` restores it, or removes it if there was none."""
        before = vars(owner).get(name, _ABSENT)

        def restore() -> None:
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        setattr(owner, name, value)
        self._undo.append(restore)

    def on_undo(self, action: Callable[[], None]) -> None:
        """Do something else when all is put back."""
        self._undo.append(action)

    def undo(self) -> None:
        """Put everything back, the latest first."""
        while self._undo:
            self._undo.pop()()
