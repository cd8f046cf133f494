"""Loaders that are stopped when a test ends, whatever became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pantile.data import AsynchronousDataAccessor, DataLoader
from pantile.options import Options


@pytest.fixture
def loader() -> Iterator[Callable[..., DataLoader]]:
    """Makes a DataLoader; options are the keyword arguments D, G, R, seed, process, strict."""
    made: list[DataLoader] = []

    def make(dataset: Any, *, D=1, G=1, R=1, seed=None, process=None, strict=False, **kwargs: Any):
        options = Options().deviceIterations(D).replicationFactor(R).strict(strict)
        options.Training.gradientAccumulation(G)
        if seed is not None:
            options.randomSeed(seed)
        if process is not None:
            options.Distributed.configureProcessId(*process)
        made.append(DataLoader(options, dataset, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.terminate()


@pytest.fixture
def accessor() -> Iterator[Callable[..., AsynchronousDataAccessor]]:
    """Makes an AsynchronousDataAccessor."""
    made: list[AsynchronousDataAccessor] = []

    def make(*args: Any, **kwargs: Any) -> AsynchronousDataAccessor:
        made.append(AsynchronousDataAccessor(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.terminate()
