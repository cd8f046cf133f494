"""The parent's hold on a worker process: start it, listen to it, end it.

Every wait is bounded. A dead worker is noticed at once (its process descriptor becomes readable);
one that is stopped or stuck, by its heart: no beat for `heartbeat` seconds. A worker that lives but
delivers nothing is first warned about, with its stack, and given up after `timeout` seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import select
import signal
import threading
import time
import weakref
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for
from pickle import PicklingError
from typing import Any

from pantile.data import worker
from pantile.data.blackbox import BlackBox
from pantile.data.carry import Carried
from pantile.data.lifetime import open_pidfd
from pantile.data.messages import Kind, Message
from pantile.data.plan import LoaderPlan
from pantile.data.ring import Ring
from pantile.data.shared import SharedFile
from pantile.data.status import Status, StatusPage
from pantile.enums import SharingStrategy
from pantile.errors import DataError, WorkerDied, WorkerStalled
from pantile.logging import logger

_START_METHODS = {
    SharingStrategy.SharedMemory: "spawn",
    SharingStrategy.FileSystem: "spawn",
    SharingStrategy.Fork: "fork",
    SharingStrategy.ForkServer: "forkserver",
}
_LOOK = 0.5  # how often a wait looks at the heart, in seconds
_GRACE = 1.0  # how long a worker may take to stop by itself; a fresh interpreter needs 0.5


@dataclass(frozen=True)
class Patience:
    """How long to wait for what, in seconds."""

    start: float = 120.0
    heartbeat: float = 10.0
    timeout: float = 600.0


class WorkerLink:
    """A running worker."""

    def __init__(self, job: worker.Job, strategy: SharingStrategy, patience: Patience) -> None:
        _refuse_to_recurse()
        self._owner = os.getpid()
        self._patience = patience
        in_memory = strategy is not SharingStrategy.FileSystem
        status_file = SharedFile.create(in_memory=True)
        self.status = StatusPage(status_file)
        self._black_box = BlackBox()
        writers = job.source.writers if isinstance(job.source, LoaderPlan) else 0
        ring_files = tuple(SharedFile.create(in_memory=in_memory) for _ in range(1 + writers))
        self.rings = [Ring(file) for file in ring_files]
        context: Any = multiprocessing.get_context(_START_METHODS[strategy])
        if strategy is SharingStrategy.ForkServer:
            _preload(context)
        self._channel, theirs = context.Pipe()
        self._process = context.Process(
            target=_run,
            args=(Carried(job), theirs, status_file, ring_files, self._black_box.file),
            name="pantile loader",
        )
        try:
            self._start(strategy)
        except BaseException:
            self._close_files()
            raise
        finally:
            theirs.close()
        self.pid: int = self._process.pid
        self._pidfd = open_pidfd(self.pid)
        self._poll = select.poll()
        self._poll.register(self._channel.fileno(), select.POLLIN)
        sign = self._process.sentinel if self._pidfd is None else self._pidfd
        self._poll.register(sign, select.POLLIN)
        self._is_open = True
        _open_links.add(self)

    def _start(self, strategy: SharingStrategy) -> None:
        try:
            self._process.start()
        except (AttributeError, TypeError, PicklingError) as error:
            if strategy is SharingStrategy.Fork:
                raise
            raise DataError(
                f"the dataset cannot be sent to a worker process: {error}",
                fix="define its classes and functions at the top level of a module, or start the "
                "worker with sharing_strategy=poptorch.SharingStrategy.Fork",
            ) from error

    def send(self, message: Message) -> None:
        """Tell the worker; if it is gone, the next `receive` says why."""
        if self._is_open:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                message.send(self._channel)

    def check_usable(self) -> None:
        """Raise if the link was closed, or belongs to another process."""
        if not self._is_open:
            raise DataError("the loader was terminated", fix="make a new one; terminate() is final")
        if os.getpid() != self._owner:
            raise DataError(
                "this loader was made by another process and cannot be used after a fork",
                fix="make the loader in the process that iterates over it",
            )

    def receive(self) -> Message:
        """The next message. Raises what went wrong if there will be none."""
        self.check_usable()
        try:
            return self._wait_for_message()
        except BaseException:
            # Also for Ctrl-C: nothing may be left running behind a traceback.
            self.close()
            raise

    def _wait_for_message(self) -> Message:
        channel = self._channel.fileno()
        watch = _Watch(self)
        while True:
            ready = [fd for fd, _ in self._poll.poll(_LOOK * 1000)]
            # What a worker said before it died still counts: look at the channel first.
            if channel in ready:
                try:
                    return Message.receive(self._channel)
                except (EOFError, ConnectionResetError):
                    raise self._death() from None
            if ready:
                raise self._death()
            watch.look()

    def failure(self) -> str:
        """The traceback the worker left."""
        return self._black_box.read()

    def close(self) -> None:
        """End the worker, kindly if it can be done in time. Doing it again does nothing."""
        if not self._is_open or os.getpid() != self._owner:
            return
        self.send(Message(Kind.STOP))
        self._is_open = False
        if not self._ends_within(_GRACE):
            with contextlib.suppress(ProcessLookupError):
                # Its group: the workers it has itself go with it.
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._ends_within(_GRACE)
        self._process.join(1.0)
        self._close_files()
        if self._pidfd is not None:
            os.close(self._pidfd)
        self._channel.close()
        _open_links.discard(self)

    def _ends_within(self, seconds: float) -> bool:
        sign = self._process.sentinel if self._pidfd is None else self._pidfd
        return bool(wait_for([sign], seconds))

    def _close_files(self) -> None:
        self.status.close()
        for ring in self.rings:
            ring.close()
        self._black_box.close()

    def _death(self) -> WorkerDied:
        status = self.status.read()
        self._process.join(1.0)
        code = self._process.exitcode
        started = status.heartbeat > 0
        what = (
            "the loader's worker" if started else "the loader's worker thread failed to start: it"
        )
        last_words = self._black_box.frames()
        return WorkerDied(
            f"{what} (process {self.pid}) {_how_it_ended(code)} while {status}"
            + (f"\n{last_words}" if last_words else ""),
            fix=_advice(code, started=started),
        )

    def stall(self, what: str, status: Status) -> WorkerStalled:
        """The error for a worker that does not go on."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)  # a stopped process could not answer
        stack = self.stack()
        return WorkerStalled(
            f"the loader's worker (process {self.pid}) {what} while {status}"
            + (f"\n{stack}" if stack else ""),
            fix="see where it hangs above; if it only is slow, allow more with "
            "async_options={'timeout': seconds}",
        )

    def stack(self) -> str:
        """Where the worker is now, if it is able to tell."""
        before = self._black_box.size
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, worker.STACK_SIGNAL)
        deadline = time.monotonic() + _LOOK
        size = before
        # It is written line by line: it is complete when it grows no more.
        while time.monotonic() < deadline and (size == before or size < self._black_box.size):
            size = self._black_box.size
            if self._ends_within(0.01):
                break
        return self._black_box.frames(before)

    @property
    def patience(self) -> Patience:
        """How long this link waits."""
        return self._patience


class _Watch:
    """The observations of one wait. Time is counted in looks: a suspended parent blames nobody."""

    def __init__(self, link: WorkerLink) -> None:
        self._link = link
        self._heartbeat = -1
        self._quiet = 0.0
        self._waited = 0.0
        self._warned = False

    def look(self) -> None:
        """Take note after a look without a message; raise if it was one too many."""
        status = self._link.status.read()
        patience = self._link.patience
        self._waited += _LOOK
        self._quiet = 0.0 if status.heartbeat != self._heartbeat else self._quiet + _LOOK
        self._heartbeat = status.heartbeat
        limit = patience.heartbeat if status.heartbeat else patience.start
        if self._quiet >= limit:
            raise self._link.stall(f"gave no sign of life for {limit:g} s", status)
        if self._waited >= patience.timeout:
            raise self._link.stall(f"delivered nothing for {patience.timeout:g} s", status)
        is_alive = self._quiet == 0.0
        if self._waited >= patience.heartbeat and is_alive and not self._warned:
            self._warned = True
            logger.warning(
                "The loader's worker has been %s for %g s. It is now at:\n%s",
                *(status, self._waited, self._link.stack()),
            )


def _run(job: Carried, *ends: Any) -> None:
    worker.work(job.value, *ends)


def starter_of(strategy: SharingStrategy) -> int | None:
    """The process whose end the kernel can report to a worker started here and now."""
    if strategy is SharingStrategy.ForkServer:
        return None
    is_main = threading.current_thread() is threading.main_thread()
    return os.getpid() if is_main else None


def _preload(context: Any) -> None:
    """Let the fork server import torch once, so that each worker starts in milliseconds."""
    from multiprocessing import forkserver

    server: Any = forkserver._forkserver
    if getattr(server, "_forkserver_pid", None) is None:
        # "__main__" is the default: a script without a guard would end the server itself.
        wanted = [name for name in server._preload_modules if name != "__main__"]
        context.set_forkserver_preload([*wanted, "pantile.data.preload"])


def _refuse_to_recurse() -> None:
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise DataError(
            "an asynchronous loader is made while the main script is imported by its own worker",
            fix="put the script's body under: if __name__ == '__main__':",
        )


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "died"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"


def _advice(code: int | None, *, started: bool) -> str:
    if not started:
        return (
            "see the output of the worker; the script's body must be under "
            "`if __name__ == '__main__':` and the dataset must be picklable, or use "
            "async_options={'sharing_strategy': poptorch.SharingStrategy.Fork}"
        )
    if code == -signal.SIGKILL:
        return "if nobody killed it, memory ran out: use fewer workers or a smaller buffer_size"
    if code is not None and code < 0:
        return "native code in the dataset crashed; iterate over it with DataLoaderMode.Sync"
    return "the dataset must not end its process: raise an exception instead"


_open_links: weakref.WeakSet[WorkerLink] = weakref.WeakSet()


def _close_all() -> None:
    for link in list(_open_links):
        link.close()


# Registered after multiprocessing's own hook and so run before it: that one waits for children.
atexit.register(_close_all)
