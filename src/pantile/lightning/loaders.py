"""Loaders that deliver one batch per call of a compiled step: `n` batches of the user's in one.

    DataLoader            a copy, with a batch sampler that takes n batches of the user's sampler
    poptorch.DataLoader   as it is: its batches already fit
    any other iterable    batches are joined on dim 0

An incomplete last batch is left out in training (a program has one size), and kept elsewhere.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset

from pantile.data.loader import DataLoader
from pantile.errors import DataArgumentError
from pantile.logging import logger
from pantile.options import Options


def combined(loader: Any, count: int, *, training: bool, options: Options | None = None) -> Any:
    """A loader whose batches are `count` of the given one's, for programs with such options."""
    if isinstance(loader, DataLoader) or (count == 1 and options is None):
        return loader
    if isinstance(loader, TorchLoader) and loader.batch_sampler is not None:
        made = _with_combined_sampler(loader, count, training=training)
        return made if options is None else _with_options(made, options)
    return loader if count == 1 else JoinedBatches(loader, count, training=training)


class CombinedLoader(DataLoader):
    """A loader of torch's with batches for a whole call, seen as the loader of PopTorch it is.

    Made of a loader that there is, not by its constructor. It loads as torch does.
    """

    __len__ = TorchLoader.__len__
    __iter__ = TorchLoader.__iter__
    _get_iterator = TorchLoader._get_iterator


def _with_options(loader: Any, options: Options) -> Any:
    if type(loader) is not TorchLoader:  # a class of the user's own stays what it is
        return loader
    twin: Any = object.__new__(CombinedLoader)
    size = getattr(loader.batch_sampler, "batch_size", None)
    vars(twin).update(vars(loader), _options=options, _accessor=None, _terminated=False)
    vars(twin).update(_combined_batch_size=size)
    return twin


class CombinedSampler:
    """Takes the indices of several batches at a time; `drop_last` leaves out an incomplete rest."""

    def __init__(self, sampler: Iterable[list[Any]], count: int, *, drop_last: bool) -> None:
        self.sampler, self.count, self.drop_last = sampler, count, drop_last
        size = getattr(sampler, "batch_size", None)
        self.batch_size = None if size is None else size * count

    def __iter__(self) -> Iterator[list[Any]]:
        parts: list[list[Any]] = []
        for indices in self.sampler:
            parts.append(list(indices))
            if len(parts) == self.count and self._is_whole(parts):
                yield [index for part in parts for index in part]
                parts = []
        if parts and not self.drop_last:
            yield [index for part in parts for index in part]

    def _is_whole(self, parts: list[list[Any]]) -> bool:
        """All parts of one size, or a rest that may be smaller."""
        return not self.drop_last or len({len(part) for part in parts}) == 1

    def __len__(self) -> int:
        whole, rest = divmod(len(self.sampler), self.count)  # type: ignore[arg-type]
        if not self.drop_last:
            return whole + bool(rest)
        return whole - (rest == 0 and whole > 0 and _ends_short(self.sampler))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "sampler":
            raise AttributeError(name)
        return getattr(self.sampler, name)


def _ends_short(sampler: Any) -> bool:
    """Is the last batch of a sampler smaller than the others?"""
    size, drop_last = getattr(sampler, "batch_size", None), getattr(sampler, "drop_last", True)
    inner: Any = getattr(sampler, "sampler", None)
    if drop_last or not size or not hasattr(inner, "__len__"):
        return False
    return bool(len(inner) % size)


def _warn_of_rest(sampler: CombinedSampler) -> None:
    """Say how much of an epoch is left out, where that is known before it runs."""
    inner, size = getattr(sampler.sampler, "sampler", None), sampler.batch_size
    try:
        left, what = len(sampler.sampler) - len(sampler) * sampler.count, "batches"  # type: ignore[arg-type]
        if isinstance(size, int) and inner is not None:
            left, what = len(inner) - len(sampler) * size, "samples"
    except TypeError:  # a sampler without a length
        return
    if left > 0:
        logger.warning(
            "%d %s at the end of a training epoch do not fill a call of all replicas and device "
            "iterations: they are left out.",
            left,
            what,
        )


def _with_combined_sampler(loader: Any, count: int, *, training: bool) -> Any:
    twin = copy.copy(loader)
    table = vars(twin)
    sampler = loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset):
        table["drop_last"] = training
        table["batch_sampler"] = CombinedSampler(sampler, count, drop_last=False)
        return twin
    if type(sampler).__name__ == "_IndexBatchSamplerWrapper":
        # The prediction loop asks the outermost sampler which samples were seen.
        wrapper = copy.copy(sampler)
        wrapper._batch_sampler = CombinedSampler(sampler._batch_sampler, count, drop_last=False)
        table["batch_sampler"] = wrapper
        return twin
    table["batch_sampler"] = made = CombinedSampler(sampler, count, drop_last=training)
    if training:
        _warn_of_rest(made)
    return twin


class JoinedBatches:
    """The batches of any iterable, `count` of them at a time joined on dim 0."""

    def __init__(self, batches: Iterable[Any], count: int, *, training: bool) -> None:
        self.batches, self.count, self._training = batches, count, training

    def __iter__(self) -> Iterator[Any]:
        parts: list[Any] = []
        for batch in self.batches:
            parts.append(batch)
            if len(parts) == self.count:
                yield _joined(parts)
                parts = []
        if parts and not self._training:
            yield _joined(parts)

    def __len__(self) -> int:
        whole, rest = divmod(len(self.batches), self.count)  # type: ignore[arg-type]
        return whole + bool(rest and not self._training)


def _joined(batches: list[Any]) -> Any:
    flat = [pytree.tree_flatten(batch) for batch in batches]
    joined = []
    for leaves in zip(*(leaves for leaves, _ in flat), strict=True):
        first = leaves[0]
        if isinstance(first, torch.Tensor) and first.dim():
            joined.append(torch.cat(leaves))
        elif all(type(leaf) is type(first) and leaf == first for leaf in leaves):
            joined.append(first)
        else:
            raise DataArgumentError(
                f"{len(batches)} batches cannot be joined: they hold different {type(first)}",
                fix="use a torch DataLoader, or yield batches of tensors with samples on dim 0",
            )
    return pytree.tree_unflatten(joined, flat[0][1])
