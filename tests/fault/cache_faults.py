"""What the fault tests of the cache share: an entry, and a builder that counts across processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pantile.store.cache import Entry

KEY = "0123456789abcdef" * 4
OTHER_KEY = "fedcba9876543210" * 4


def entry(key: str = KEY, size: int = 3000) -> Entry:
    """An entry whose bytes depend on its key."""
    code = (key.encode() * (size // len(key) + 1))[:size]
    return Entry(key, {"name": f"model {key[:4]}"}, {"code": memoryview(code)})


class CountingBuilder:
    """Builds an entry and adds a byte to a file, so that builds of all processes are counted."""

    def __init__(self, tally: Path, built: Entry, first: Callable[[], None] | None = None) -> None:
        self.tally = tally
        self.built = built
        self.first = first

    @property
    def builds(self) -> int:
        return self.tally.stat().st_size if self.tally.exists() else 0

    def __call__(self) -> Entry:
        is_first = self.builds == 0
        descriptor = os.open(self.tally, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(descriptor, b"x")
        os.close(descriptor)
        if is_first and self.first is not None:
            self.first()
        return self.built
