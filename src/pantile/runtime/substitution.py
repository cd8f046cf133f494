"""Context managers that libraries want active while a model is captured.

PyTorch Geometric's IPU package swaps functions for ones with static shapes this way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

Maker = Callable[[], AbstractContextManager[Any]]

_makers: list[Maker] = []


def register_substitution(maker: Maker) -> None:
    """Enter `maker()` around every capture from now on."""
    if maker not in _makers:
        _makers.append(maker)


@contextmanager
def substituted() -> Iterator[None]:
    """All registered managers are active inside, in the order of registration."""
    with ExitStack() as stack:
        for maker in tuple(_makers):
            stack.enter_context(maker())
        yield
