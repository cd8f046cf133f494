"""With how many threads torch's own operators run, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Operators that this thread calls meanwhile use so many threads.

    One is best for what is done while something is compiled: OpenMP's threads wait for each other
    at the end of every operator, and a compiler may have the core that one of them needs.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
