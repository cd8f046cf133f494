"""`DataLoader`: torch's loader, delivering everything one call of an executor consumes.

combined batch = batch_size · device iterations · gradient accumulation · replicas / group size

Sync             batches are made in this process (or torch's workers)
Async            … in a process of their own, while the model runs
AsyncRebatched   … from smaller pieces, so that workers with ragged ends lose no rows
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset

from pantile.data.accessor import AsynchronousDataAccessor
from pantile.data.combine import group
from pantile.data.lifetime import tied
from pantile.data.plan import LoaderPlan
from pantile.data.sampling import ProcessShare
from pantile.enums import DataLoaderMode
from pantile.errors import DataArgumentError, DataError
from pantile.logging import logger
from pantile.options import Options


class DataLoader(TorchLoader[Any]):
    """A loader whose every item feeds one call of an executor.

    It takes the arguments of torch's loader and differs in these defaults: `drop_last` is True
    (an incomplete combined batch cannot be divided between replicas and accumulation steps), and
    workers persist between epochs. `options` are frozen from here on.

    With several processes (`options.Distributed`) a map-style dataset is divided between them
    unless `auto_distributed_partitioning` is False. `mode` chooses who prepares the batches;
    `async_options` are the arguments of `AsynchronousDataAccessor`. A `batch_sampler` yields
    micro-batches; as many as one call consumes are joined along dim 0.
    """

    def __init__(
        self,
        options: Options,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: dict[str, Any] | None = None,
        rebatched_worker_size: int | None = None,
        batch_sampler: Any = None,
        **kwargs: Any,
    ) -> None:
        _check_options(options)
        _check_batch_size(batch_size)
        options._freeze()
        self._accessor: AsynchronousDataAccessor | None = None
        self._options = options
        self._terminated = False
        self._drops_last = drop_last
        self._micro_batches = _micro_batches_per_call(options)
        self._combined_batch_size = self._combine(batch_size, batch_sampler)

        if batch_sampler is not None:
            _check_batch_sampler(options, batch_size, shuffle, auto_distributed_partitioning)
            kwargs["batch_sampler"] = batch_sampler
        mode, self._rebatched = self._choose_mode(mode, batch_sampler)
        if batch_sampler is None:
            kwargs["batch_size"] = self._piece_size(rebatched_worker_size)
            whole = self._combined_batch_size is not None and not self._rebatched
            kwargs["drop_last"] = drop_last and whole
            kwargs["shuffle"] = shuffle
            if auto_distributed_partitioning and options.Distributed.numProcesses > 1:
                kwargs |= self._share(dataset, shuffle, kwargs)
        if num_workers > 1 and isinstance(dataset, IterableDataset):
            _warn_of_duplicates(kwargs)
        if persistent_workers is None:
            persistent_workers = num_workers > 0
        kwargs |= {"num_workers": num_workers, "persistent_workers": persistent_workers}

        super().__init__(dataset, **kwargs)
        self._warn_of_lost_rows()
        micro = self._micro_batches if batch_sampler is not None else 1
        self._plan = LoaderPlan(
            dataset, kwargs, micro, drop_last, self._combined_batch_size, self._rebatched
        )
        if mode is not DataLoaderMode.Sync:
            self._accessor = self._start_accessor(async_options)

    @property
    def combinedBatchSize(self) -> int | None:
        """Rows of one item, or None if the loader does not batch."""
        return self._combined_batch_size

    @property
    def options(self) -> Options:
        """The options the combined batch size comes from."""
        return self._options

    def __len__(self) -> int:
        whole, size = self._count_pieces()
        if size == 1:
            return whole
        return whole // size if self._drops_last else math.ceil(whole / size)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self._terminated:
            raise DataError(
                "this DataLoader was terminated", fix="make a new one; terminate() is final"
            )
        if self._accessor is not None:
            return iter(self._accessor)
        batches = super().__iter__()
        if self._plan.micro_batches == 1:
            return batches
        return group(batches, self._micro_batches, drop_last=self._drops_last)

    def terminate(self) -> None:
        """Stop the worker processes. The loader cannot be used any more."""
        self._terminated = True
        if self._accessor is not None:
            self._accessor.terminate()
        # Dropping torch's iterator is what ends its persistent workers.
        self._iterator = None

    def _get_iterator(self) -> Any:
        user_function = self.worker_init_fn
        if self.num_workers > 0:
            self.worker_init_fn = tied(user_function)
        try:
            return super()._get_iterator()
        finally:
            self.worker_init_fn = user_function

    def _combine(self, batch_size: int | None, batch_sampler: Any) -> int | None:
        if batch_sampler is not None:
            batch_size = getattr(batch_sampler, "batch_size", None)
        return None if batch_size is None else batch_size * self._micro_batches

    def _choose_mode(self, mode: Any, batch_sampler: Any) -> tuple[DataLoaderMode, bool]:
        """The mode, and whether batches are assembled from smaller pieces."""
        try:
            mode = DataLoaderMode(mode)
        except ValueError:
            raise DataArgumentError(
                f"mode={mode!r} is not a DataLoaderMode", fix="use poptorch.DataLoaderMode.Sync"
            ) from None
        size = self._combined_batch_size
        if mode is DataLoaderMode.AsyncRebatched and size is None and batch_sampler is None:
            raise DataArgumentError(
                "mode=AsyncRebatched cannot rebatch what is not batched: batch_size is None",
                fix="give a batch_size, or use mode=DataLoaderMode.Async",
            )
        if mode is DataLoaderMode.Sync or batch_sampler is not None or size is None or size == 1:
            return mode, False
        # An incomplete batch per torch worker would be kept otherwise, not one at the end.
        return mode, mode is DataLoaderMode.AsyncRebatched or not self._drops_last

    def _piece_size(self, rebatched_worker_size: int | None) -> int | None:
        """How many rows torch's loader puts in a batch."""
        combined = self._combined_batch_size
        if rebatched_worker_size is None or combined is None or not self._rebatched:
            return combined
        if not 1 <= rebatched_worker_size <= combined:
            raise DataArgumentError(
                f"rebatched_worker_size={rebatched_worker_size} must be between 1 and the "
                f"combined batch size, {combined}",
                fix=f"use at most {combined}, or leave it out",
            )
        return rebatched_worker_size

    def _share(
        self, dataset: Any, shuffle: bool | None, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The sampler, for this process, of a dataset divided between several."""
        options, size = self._options, self._combined_batch_size
        _check_divisible(options, dataset, size, shuffle, given)
        assert size is not None  # checked above
        share = ProcessShare(
            len(dataset),
            process=options.Distributed.processId,
            processes=options.Distributed.numProcesses,
            batch=size,
            drop_last=self._drops_last,
            seed=options.random_seed if shuffle else None,
        )
        return {"sampler": share, "shuffle": False}

    def _start_accessor(self, async_options: dict[str, Any] | None) -> AsynchronousDataAccessor:
        settings = dict(async_options or {})
        if "rebatched_size" in settings:
            raise DataArgumentError(
                "async_options must not contain rebatched_size: the loader chooses it",
                fix="use mode=DataLoaderMode.AsyncRebatched instead",
            )
        settings.setdefault("zero_copy", self._options.is_strict)
        settings.setdefault("flat_only", self._options.is_strict)
        size = self._combined_batch_size if self._rebatched else None
        accessor = AsynchronousDataAccessor(self, rebatched_size=size, **settings)
        accessor._belong_to(self)
        return accessor

    def _count_pieces(self) -> tuple[int, int]:
        """The number of pieces torch delivers (or their rows), and how many make an item."""
        if self._plan.micro_batches > 1:
            return super().__len__(), self._plan.micro_batches
        if self._rebatched and self._combined_batch_size is not None:
            sized: Any = self.dataset
            if not isinstance(self.dataset, IterableDataset):
                sized = self.sampler
            return len(sized), self._combined_batch_size
        return super().__len__(), 1

    def _warn_of_lost_rows(self) -> None:
        size = self._combined_batch_size
        if size is None or size == 1 or isinstance(self.dataset, IterableDataset):
            return
        rows: int | None = _length(self.sampler)
        if rows is None or rows % size == 0:
            return
        if not self._drops_last:
            logger.warning(
                "The %d elements of the dataset do not divide into combined batches of %d: with "
                "drop_last=False the last one has %d. A model can only run it if that divides "
                "into its micro-batches.",
                *(rows, size, rows % size),
            )
        elif rows < size:
            logger.warning(
                "The dataset has %d elements, fewer than one combined batch of %d: the DataLoader "
                "will yield nothing. Lower the batch size or pass drop_last=False.",
                *(rows, size),
            )
        else:
            logger.debug("drop_last=True: %d of %d elements are left out", rows % size, rows)


def _micro_batches_per_call(options: Options) -> int:
    updates: int = options.device_iterations * options.Training.gradient_accumulation
    return updates * options.input_groups


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except TypeError:
        return None


def _check_options(options: object) -> None:
    if not isinstance(options, Options):
        raise DataArgumentError(
            f"options is a {type(options).__name__}, not poptorch.Options",
            fix="pass the options first: poptorch.DataLoader(options, dataset, ...)",
        )


def _check_batch_size(batch_size: object) -> None:
    is_number = isinstance(batch_size, int) and not isinstance(batch_size, bool)
    if batch_size is None or (is_number and batch_size > 0):  # type: ignore[operator]
        return
    raise DataArgumentError(
        f"batch_size={batch_size!r} must be a positive integer or None",
        fix="give the number of rows of one micro-batch, or None for a dataset that batches itself",
    )


def _check_batch_sampler(
    options: Options, batch_size: int | None, shuffle: bool | None, partitioning: bool
) -> None:
    if batch_size != 1:
        clash, fix = f"batch_size={batch_size}", "the sampler decides the batch size: leave it out"
    elif shuffle:
        clash, fix = "shuffle=True", "shuffle in the sampler"
    elif partitioning and options.Distributed.numProcesses > 1:
        clash = "auto_distributed_partitioning=True with several processes"
        fix = "divide the data in the sampler and pass auto_distributed_partitioning=False"
    else:
        return
    raise DataError(f"batch_sampler cannot be used with {clash}", fix=fix)


def _check_divisible(
    options: Options,
    dataset: Any,
    combined: int | None,
    shuffle: bool | None,
    given: Mapping[str, Any],
) -> None:
    """Raise unless the dataset can be divided between processes."""
    off = "pass auto_distributed_partitioning=False"
    if given.get("sampler") is not None:
        raise DataError(
            "sampler cannot be used with auto_distributed_partitioning=True and several processes",
            fix=f"divide the data in the sampler and {off}",
        )
    if isinstance(dataset, IterableDataset):
        raise DataArgumentError(
            "an iterable dataset cannot be divided between processes automatically",
            fix=f"let each process's dataset yield its own rows and {off}",
        )
    if combined is None:
        raise DataArgumentError(
            "batch_size=None: without batches a dataset cannot be divided between processes",
            fix=f"give a batch_size, or {off}",
        )
    if shuffle and not options.exists("random_seed"):
        raise DataArgumentError(
            "shuffle=True with several processes needs a seed that all of them share",
            fix="call options.randomSeed(...) with the same number in every process",
        )


def _warn_of_duplicates(kwargs: Mapping[str, Any]) -> None:
    if kwargs.get("worker_init_fn") is None:
        logger.warning(
            "num_workers > 1 with an iterable dataset and no worker_init_fn: unless the dataset "
            "itself looks at torch.utils.data.get_worker_info(), every worker yields all elements "
            "and each one appears several times."
        )
