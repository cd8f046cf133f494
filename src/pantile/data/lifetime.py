"""Let a process end with the one that started it, however that one ends.

Two nets, because each has a hole. The kernel kills a child when the *thread* that started it is
gone (PR_SET_PDEATHSIG): immediate, but wrong if that thread was not the main one. A pidfd tells of
the end of any process: always right, but a thread has to be running to look at it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

_PR_SET_PDEATHSIG = 1


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None if there is no such thing."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # an old kernel, or the process is gone: the callers have other signs of that
        return None


def die_with_starter(starter: int) -> None:
    """Have the kernel kill this process when its starter (a process id) ends."""
    if sys.platform != "linux":
        return
    if os.getppid() == starter:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have ended before the call took effect. (A fork server in between is no such case.)
    if os.getppid() != starter and not _is_running(starter):
        os.kill(os.getpid(), signal.SIGKILL)


def _is_running(pid: int) -> bool:
    """Is there such a process? One that has ended may wait for its parent, and has its id still."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    pidfd = open_pidfd(pid)
    if pidfd is None:
        return True
    try:
        return not select.select([pidfd], [], [], 0)[0]
    finally:
        os.close(pidfd)


@dataclass(frozen=True)
class TiedToStarter:
    """A `worker_init_fn` for torch's loader workers: end with the starter, then do the user's.

    Torch's own workers look for a dead parent only every five seconds.
    """

    then: Callable[[int], None] | None
    starter: int

    def __call__(self, worker: int) -> None:
        die_with_starter(self.starter)
        if self.then is not None:
            self.then(worker)


def tied(worker_init_fn: Callable[[int], None] | None) -> Callable[[int], None] | None:
    """The function with which loader workers started here and now should be initialised."""
    if isinstance(worker_init_fn, TiedToStarter):
        worker_init_fn = worker_init_fn.then
    if threading.current_thread() is not threading.main_thread():
        return worker_init_fn
    return TiedToStarter(worker_init_fn, os.getpid())
