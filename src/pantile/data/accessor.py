"""`AsynchronousDataAccessor`: iterate over a dataset that another process loads ahead.

    worker process   item 3 ─► │ slot 0 │ slot 1 │ slot 2 │ ─► item 0   this process

An epoch that is left early is given up when the next one begins. Items are the caller's own: small
ones are copied, big ones keep their place in shared memory for as long as somebody refers to them.
With `zero_copy` all are lent, and change when the next item is taken.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError
from typing import Any

from pantile.data.link import Patience, WorkerLink, starter_of
from pantile.data.messages import Kind, Message
from pantile.data.plan import plan_of
from pantile.data.ring import State
from pantile.data.worker import Job, Randomness
from pantile.enums import SharingStrategy
from pantile.errors import DataArgumentError, DataError
from pantile.logging import logger
from pantile.options import environment
from pantile.program import structure


class AsynchronousDataAccessor:
    """Load the items of any iterable, dataset or loader in a worker process.

    `buffer_size` items are kept ready. `load_indefinitely` begins the next epoch as soon as one is
    complete. `early_preload` fills the buffer before anybody iterates; otherwise one item is ready.
    `sharing_strategy` says how the process is started. `rebatched_size` cuts the items, which must
    be batches, into batches of that many rows.

    `miss_sleep_time_in_ms` is accepted for PopTorch scripts: here a miss waits exactly as long as
    it takes. Beyond PopTorch: `zero_copy` hands out tensors that lie in the shared buffer and
    change when the next item is taken; `flat_only` refuses nested items (both are strict mode's
    way); `heartbeat` and `timeout` (seconds) bound how long a worker may show no sign of life, and
    how long it may take over one item.
    """

    def __init__(
        self,
        dataset: Any,
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        sharing_strategy: SharingStrategy = SharingStrategy.ForkServer,
        rebatched_size: int | None = None,
        *,
        zero_copy: bool | None = None,
        flat_only: bool | None = None,
        heartbeat: float = 10.0,
        timeout: float = 600.0,
    ) -> None:
        _check_numbers(buffer_size, miss_sleep_time_in_ms, heartbeat, timeout)
        strategy = _check_strategy(sharing_strategy)
        _check_dataset(dataset, rebatched_size)
        strict = environment.strict()
        self._dataset = dataset
        self._rebatched_size = rebatched_size
        self._copy = not (strict if zero_copy is None else zero_copy)
        plan = plan_of(dataset)
        if plan is not None and rebatched_size is not None:
            plan = replace(plan, is_rebatched=True)  # batches of torch's loader are no items
        job = Job(
            source=plan or dataset,
            buffer_size=buffer_size,
            load_indefinitely=load_indefinitely,
            early_preload=early_preload,
            rebatched_size=rebatched_size,
            drop_last=plan.drop_last if plan else getattr(dataset, "drop_last", True),
            flat_only=strict if flat_only is None else flat_only,
            parent=os.getpid(),
            starter=starter_of(strategy),
            start_method=multiprocessing.get_start_method(),
            randomness=Randomness.take(),
            parsers=_sendable_parsers(),
        )
        self._epoch = 0
        self._is_begun = False
        self._iterations = 0
        self._lent: Message | None = None
        patience = Patience(heartbeat=heartbeat, timeout=timeout)
        self._link = WorkerLink(job, strategy, patience)
        weakref.finalize(self, self._link.close).atexit = False
        logger.debug("AsynchronousDataAccessor worker process: %d", self._link.pid)
        self._first: Message | None = self._start()

    def __len__(self) -> int:
        plan = plan_of(self._dataset)
        if self._rebatched_size is None or (plan and plan.is_rebatched):
            return len(self._dataset)
        rows: int = len(self._dataset) * self._dataset.batch_size
        return rows // self._rebatched_size

    def __iter__(self) -> Iterator[Any]:
        self._link.check_usable()
        if self._is_begun:
            self._begin_epoch(self._epoch + 1)
        self._link.send(Message(Kind.RUN, self._epoch))
        self._iterations += 1
        return _Iteration(self, self._iterations)

    def terminate(self) -> None:
        """Stop the worker. The accessor cannot be used any more."""
        self._link.close()

    def _belong_to(self, loader: Any) -> None:
        """Hold the loader that holds this accessor weakly: when it is dropped, the worker ends."""
        self._dataset = weakref.proxy(loader)

    def _start(self) -> Message:
        """Wait for the first item: a dataset that cannot give one is a mistake."""
        message = self._link.receive()
        if message.kind is Kind.ITEM:
            return message
        if message.kind is Kind.FAILED:
            raise self._failure("the loader's worker thread failed to start: ")
        self.terminate()
        raise DataError(
            "the loader's worker thread failed to start: the dataset is empty",
            fix="give a dataset with at least one element (with drop_last, one combined batch)",
        )

    def _take(self, iteration: int) -> Any:
        """The next item for the newest iteration; StopIteration at the end of the epoch."""
        if iteration != self._iterations:
            raise DataError(
                "this iteration was given up when another one over the same loader began",
                fix="use one loader for each iteration that runs at the same time",
            )
        epoch = self._epoch
        self._is_begun = True
        self._give_back()
        while True:
            message = self._next_message()
            if message.kind is Kind.FAILED:
                raise self._failure("the dataset of an asynchronous loader raised ")
            if message.epoch < epoch:
                if message.kind is Kind.ITEM:
                    self._release(message)
            elif message.kind is Kind.END:
                self._begin_epoch(epoch + 1)
                raise StopIteration
            else:
                return self._open(message)

    def _next_message(self) -> Message:
        message, self._first = self._first, None
        return message or self._link.receive()

    def _open(self, message: Message) -> Any:
        ring = self._link.rings[message.ring]
        if self._copy:
            item = ring.take(message.row, message.size)
            self._link.send(Message(Kind.RELEASE))
            return item
        self._lent = message
        return ring.lend(message.row, message.size)

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._is_begun = False
        self._give_back()

    def _give_back(self) -> None:
        message, self._lent = self._lent, None
        if message is not None:
            self._release(message)

    def _release(self, item: Message) -> None:
        self._link.rings[item.ring].mark(item.row, State.FREE)
        self._link.send(Message(Kind.RELEASE))

    def _failure(self, what: str) -> DataError:
        """The worker's traceback, on this process's stderr and as an error."""
        text, _, summary = self._link.failure().rstrip().rpartition("\n")
        self.terminate()
        print(text, file=sys.stderr, flush=True)
        return DataError(
            f"{what}{summary}\n\nin the worker process:\n{text}",
            fix="correct the dataset; with DataLoaderMode.Sync a debugger reaches it",
        )


class _Iteration:
    """One pass over an accessor."""

    def __init__(self, accessor: AsynchronousDataAccessor, number: int) -> None:
        self._accessor = accessor
        self._number = number
        self._is_over = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        try:
            return self._accessor._take(self._number)
        except StopIteration:
            self._is_over = True
            raise

    def __len__(self) -> int:
        return len(self._accessor)


def _sendable_parsers() -> tuple[tuple[type, structure.ICustomArgParser], ...]:
    """The registered parsers. One defined inside a function cannot be sent to another process."""
    sendable = []
    for entry in structure._parsers.items():
        try:
            ForkingPickler.dumps(entry)
        except (AttributeError, TypeError, PicklingError):
            logger.debug("%s stays behind: it cannot be sent to a worker process", entry[1])
        else:
            sendable.append(entry)
    return tuple(sendable)


def _check_numbers(buffer_size: Any, miss_sleep: Any, heartbeat: Any, timeout: Any) -> None:
    if not isinstance(buffer_size, int) or isinstance(buffer_size, bool) or buffer_size < 1:
        raise DataArgumentError(
            f"buffer_size={buffer_size!r} must be a positive integer",
            fix="use 3, the default, or more for loading times that vary",
        )
    for name, value in [
        ("miss_sleep_time_in_ms", miss_sleep),
        ("heartbeat", heartbeat),
        ("timeout", timeout),
    ]:
        if not isinstance(value, int | float) or not value >= 0:
            raise DataArgumentError(
                f"{name}={value!r} must be a number of at least 0", fix="leave it out"
            )


def _check_strategy(strategy: Any) -> SharingStrategy:
    try:
        return SharingStrategy(strategy)
    except ValueError:
        raise DataArgumentError(
            f"sharing_strategy={strategy!r} is not a SharingStrategy",
            fix="use poptorch.SharingStrategy.ForkServer",
        ) from None


def _check_dataset(dataset: Any, rebatched_size: int | None) -> None:
    if rebatched_size is not None and rebatched_size <= 1:
        raise DataArgumentError(
            f"rebatched_size={rebatched_size} must be greater than 1",
            fix="leave it out to take the items as they come",
        )
    if isinstance(getattr(dataset, "_accessor", None), AsynchronousDataAccessor):
        raise DataError(
            "this DataLoader already loads asynchronously",
            fix="iterate over the loader itself, or make it with mode=DataLoaderMode.Sync",
        )
    plan = plan_of(dataset)
    if rebatched_size is None and plan is not None and plan.has_smaller_last_batch:
        raise DataArgumentError(
            "rebatched_size is needed for a DataLoader with drop_last=False",
            fix=f"pass rebatched_size={plan.combined}, or make the loader with drop_last=True",
        )
    if not any(hasattr(dataset, name) for name in ("__iter__", "__getitem__")):
        raise DataArgumentError(
            f"dataset is a {type(dataset).__name__}, which cannot be iterated",
            fix="pass a dataset, a DataLoader or any iterable of tensors",
        )
