"""The process that loads items ahead of the model.

    epoch:   open the dataset ─► item ─► wait for room ─► write ─► ITEM ─► … ─► END
    between items it listens: RUN (another epoch), RELEASE (room for one more), STOP

A second thread beats the heart and ends the process as soon as the parent is gone.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import select
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from pantile.data.combine import rebatch
from pantile.data.lanes import Arrival, IntoDraft, IntoRing
from pantile.data.lifetime import die_with_starter, open_pidfd
from pantile.data.messages import Kind, Message
from pantile.data.packing import Packer
from pantile.data.plan import LoaderPlan
from pantile.data.ring import Ring
from pantile.data.shared import SharedFile
from pantile.data.status import Action, StatusPage
from pantile.program.structure import ICustomArgParser, register_parser

BEAT_SECONDS = 0.25
STACK_SIGNAL = signal.SIGUSR2


@dataclass(frozen=True)
class Randomness:
    """The state of the parent's generators, so that a worker draws what the parent would have."""

    torch_state: torch.Tensor
    python_state: tuple[Any, ...]

    @classmethod
    def take(cls) -> Randomness:
        """Copy the parent's state, then draw once: the next loader must differ from this one."""
        state = cls(torch.get_rng_state(), random.getstate())
        torch.empty((), dtype=torch.int64).random_()
        return state

    def use(self) -> None:
        """Make it this process's state."""
        torch.set_rng_state(self.torch_state)
        random.setstate(self.python_state)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(torch.initial_seed() % 2**32)


@dataclass(frozen=True)
class Job:
    """All a worker has to know."""

    source: Any
    buffer_size: int
    load_indefinitely: bool
    early_preload: bool
    rebatched_size: int | None
    drop_last: bool
    flat_only: bool
    parent: int
    starter: int | None  # whose end the kernel reports; None if the starting thread may end first
    start_method: str  # the parent's default
    randomness: Randomness
    parsers: tuple[tuple[type, ICustomArgParser], ...]


class _Stopped(BaseException):
    """The parent wants no more. It must get through any `except Exception` of user code."""


def work(
    job: Job,
    channel: Connection,
    status_file: SharedFile,
    ring_files: tuple[SharedFile, ...],
    black_box: SharedFile,
) -> None:
    """Be the worker, until told to stop."""
    _settle(job)
    faulthandler.enable(file=black_box.fd)
    faulthandler.register(STACK_SIGNAL, file=black_box.fd, all_threads=True)
    status = StatusPage(status_file)
    threading.Thread(target=_keep_watch, args=(job.parent, status), daemon=True).start()
    worker = _Worker(job, channel, status, ring_files)
    try:
        worker.run()
    except (_Stopped, EOFError, BrokenPipeError, ConnectionResetError):
        pass  # asked to stop, or nobody is listening any more
    except KeyboardInterrupt:
        pass  # the parent got it as well, and says so
    except Exception as error:
        os.write(black_box.fd, _report(error).encode(errors="replace"))
        Message(Kind.FAILED).send(channel)


def _settle(job: Job) -> None:
    """Become a quiet, single-threaded process in a group of its own."""
    # Ctrl-C reaches the whole group of the terminal: it is the parent's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgid(0, 0)
    if job.starter is not None:
        die_with_starter(job.starter)
    # A process that a fork server started would start torch's workers by it too: seconds each.
    multiprocessing.set_start_method(job.start_method, force=True)
    torch.set_num_threads(1)  # after a fork, OpenMP's threads are gone and waiting for them hangs
    job.randomness.use()
    for kind, parser in job.parsers:
        register_parser(kind, parser)


def _keep_watch(parent: int, status: StatusPage) -> None:
    """Beat the heart; when the parent is gone, take the whole group along."""
    pidfd = open_pidfd(parent)
    poll = select.poll()
    if pidfd is not None:
        poll.register(pidfd, select.POLLIN)
    pause = threading.Event()
    while True:
        status.beat()
        if pidfd is None:
            pause.wait(BEAT_SECONDS)
            gone = _is_gone(parent)
        else:
            gone = bool(poll.poll(BEAT_SECONDS * 1000))
        if gone:
            os.killpg(os.getpgrp(), signal.SIGKILL)


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def _report(error: Exception) -> str:
    """The traceback without our own frames at its top; the last line is the error in one line."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_ours(trace.tb_frame.f_code):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    what = str(getattr(error, "message", error)).partition("\n")[0]
    return f"{text.rstrip()}\n{type(error).__name__}: {what}\n"


def _is_ours(code: Any) -> bool:
    return bool(code.co_filename == __file__)


class _Worker:
    """Loads epochs and answers the parent."""

    def __init__(
        self,
        job: Job,
        channel: Connection,
        status: StatusPage,
        ring_files: tuple[SharedFile, ...],
    ) -> None:
        self._job = job
        self._channel = channel
        self._status = status
        self._ring_files = ring_files
        self._rings = tuple(Ring(file) for file in ring_files)
        Arrival.rings = self._rings
        self._packer = Packer(flat_only=job.flat_only)
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)
        self._room = job.buffer_size  # how many more items the parent has not yet taken
        self._epoch = 0
        # Without early preload only the first item is loaded before somebody iterates.
        self._asked_for = 0 if job.early_preload else -1

    def run(self) -> None:
        """Load epoch after epoch."""
        self._status.say(Action.STARTING, 0, 0)
        batches = self._open()
        while True:
            epoch = self._epoch
            count = self._load_epoch(epoch, batches)
            if self._epoch != epoch:
                continue  # the parent asked for a later one meanwhile
            Message(Kind.END, epoch).send(self._channel)
            self._epoch += 1
            # An empty epoch is not followed by another unasked: the two would spin for ever.
            if count == 0 or not self._job.load_indefinitely:
                self._listen_until_asked(self._epoch)

    def _open(self) -> Iterable[Any]:
        source = self._job.source
        if not isinstance(source, LoaderPlan):
            return as_iterable(source)
        if source.writers == 0:
            # Pieces that are joined or cut are not items: nothing is gained by having them there.
            return source.open(partial(IntoDraft, ring=self._rings[0]) if source.is_whole else None)
        into = partial(IntoRing, files=self._ring_files, flat_only=self._job.flat_only)
        return source.open(into)

    def _load_epoch(self, epoch: int, batches: Iterable[Any]) -> int:
        """Load one epoch, or as much of it as the parent wants; the number of items."""
        index = 0
        self._status.say(Action.LOADING, epoch, index)
        for item in self._items(batches):
            if not self._find_room(epoch, index):
                return index
            self._hand_over(item, epoch, index)
            index += 1
            if self._asked_for < 0:
                self._listen_until_asked(epoch)
            self._listen()
            if self._epoch != epoch:
                return index
            self._status.say(Action.LOADING, epoch, index)
        return index

    def _items(self, batches: Iterable[Any]) -> Iterator[Any]:
        size = self._job.rebatched_size
        if size is None:
            return iter(batches)
        return rebatch(batches, size, drop_last=self._job.drop_last)

    def _find_room(self, epoch: int, index: int) -> bool:
        """Wait until there is room. False if the epoch is not wanted any more."""
        self._listen()
        if self._room == 0:
            self._status.say(Action.WAITING, epoch, index)
        while self._room == 0 and self._epoch == epoch:
            self._listen(wait=True)
        return self._epoch == epoch

    def _hand_over(self, item: Any, epoch: int, index: int) -> None:
        self._status.say(Action.WRITING, epoch, index)
        if not isinstance(item, Arrival):
            packed = self._packer.pack(item, self._rings[0].draft_in_use)
            item = Arrival(0, self._rings[0].write(packed), packed.size)
        place = item.hand_over()
        self._room -= 1
        Message(Kind.ITEM, epoch, place.ring, place.row, place.size).send(self._channel)

    def _listen_until_asked(self, epoch: int) -> None:
        self._status.say(Action.WAITING, epoch, 0)
        while self._asked_for < epoch:
            self._listen(wait=True)

    def _listen(self, *, wait: bool = False) -> None:
        """Take in what the parent said. A wait ends with the parent, at the latest."""
        while self._poll.poll(1000 if wait else 0):
            wait = False
            message = Message.receive(self._channel)
            if message.kind is Kind.RELEASE:
                self._room += 1
            elif message.kind is Kind.RUN:
                self._asked_for = message.epoch
                self._epoch = max(self._epoch, message.epoch)
            else:
                raise _Stopped


def as_iterable(source: Any) -> Iterable[Any]:
    """Anything that can be iterated, map-style datasets included."""
    if hasattr(source, "__iter__") or not hasattr(source, "__len__"):
        return source  # type: ignore[no-any-return]
    return _Indexed(source)


@dataclass(frozen=True)
class _Indexed:
    """A map-style dataset, element by element."""

    dataset: Any

    def __iter__(self) -> Iterator[Any]:
        return (self.dataset[index] for index in range(len(self.dataset)))
