"""Datasets the data tests share, in a module of its own so that workers can import it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from pantile.program.structure import ICustomArgParser


class Counting(Dataset):
    """Row i holds the number i."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < self.rows:
            raise IndexError(index)
        return torch.tensor(index)


class CountingStream(IterableDataset):
    """The numbers 0, 1, …, divided between torch's workers in contiguous blocks."""

    def __init__(self, rows: int, *, sized: bool = True) -> None:
        self.rows = rows
        self.sized = sized

    def __len__(self) -> int:
        if not self.sized:
            raise TypeError("object of type 'CountingStream' has no len()")
        return self.rows

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        workers, number = (1, 0) if worker is None else (worker.num_workers, worker.id)
        block = -(-self.rows // workers)
        for i in range(number * block, min((number + 1) * block, self.rows)):
            yield torch.tensor(i)


class Items:
    """A plain iterable of given items."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


class Batches:
    """Batches of one column with the sizes given, counting up through all of them."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[torch.Tensor]:
        start = 0
        for size in self.sizes:
            yield torch.arange(start, start + size)
            start += size


class Misbehaving:
    """Yields `good` items, then does what its name says."""

    def __init__(self, how: str, good: int = 2) -> None:
        self.how = how
        self.good = good

    def __iter__(self) -> Iterator[torch.Tensor]:
        for i in range(self.good):
            yield torch.tensor(i)
        if self.how == "raise":
            raise ValueError("row 2 is rotten")
        if self.how == "exit":
            sys.exit(3)
        if self.how == "sleep":
            time.sleep(3600)
        os.kill(os.getpid(), getattr(signal, self.how))


class Drawing:
    """Every epoch draws three numbers from the global generator of torch."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(3):
            yield torch.rand(2)


class Telling:
    """Tells, through a shared counter, how many items were loaded."""

    def __init__(self, counter: torch.Tensor, rows: int) -> None:
        self.counter = counter
        self.rows = rows

    def __iter__(self) -> Iterator[torch.Tensor]:
        for i in range(self.rows):
            self.counter += 1
            yield torch.tensor(i)


class Point(NamedTuple):
    x: torch.Tensor
    label: str


@dataclass
class Graph:
    """A type of a user, known through its parser only."""

    nodes: torch.Tensor
    edges: torch.Tensor
    name: str = "graph"


class GraphParser(ICustomArgParser):
    def yieldTensors(self, struct: Graph) -> Iterator[torch.Tensor]:
        yield struct.nodes
        yield struct.edges

    def reconstruct(self, original_structure: Graph, tensor_iterator: Any) -> Graph:
        return Graph(next(tensor_iterator), next(tensor_iterator), original_structure.name)


def identity(value: Any) -> Any:
    return value
