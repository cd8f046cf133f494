"""`torch.utils.checkpoint` inside a captured forward.

Recomputation is a decision about memory, made later by passes that see the whole graph. While
forward is recorded, a checkpointed function is simply called: the numbers are the same, and
dropout inside it is drawn once, not twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils import checkpoint as torch_checkpoint

from pantile.ops.context import current


class _CallThrough:
    """Stands in for `CheckpointFunction`: `apply(run_function, preserve_rng, *args)`."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def apply(self, run_function: Any, preserve: bool, *args: Any) -> Any:
        if current() is None:
            return self._original.apply(run_function, preserve, *args)
        return run_function(*args)


@contextmanager
def no_recomputation() -> Iterator[None]:
    """Call checkpointed functions directly on the capturing thread; other threads see no change."""
    reentrant = torch_checkpoint.CheckpointFunction
    generator = torch_checkpoint._checkpoint_without_reentrant_generator

    def direct(*args: Any, **kwargs: Any) -> Any:
        if current() is None:
            return generator(*args, **kwargs)
        return _one_pass()

    torch_checkpoint.CheckpointFunction = _CallThrough(reentrant)  # type: ignore[misc,assignment]
    torch_checkpoint._checkpoint_without_reentrant_generator = direct
    try:
        yield
    finally:
        torch_checkpoint.CheckpointFunction = reentrant  # type: ignore[misc]
        torch_checkpoint._checkpoint_without_reentrant_generator = generator


def _one_pass() -> Iterator[None]:
    yield
