"""The other processes of a launched run, and the pipes to them.

    launcher ── starts ──► process 0 ◄── a pipe each ──► process 1, process 2, …

Process 0 serves: a thread for each pipe takes requests, of which a process makes one at a time.

    ("run", program, values)        waits for process 0 to run that program; the answer is a share
    ("weights", program)            answered at once, so that any process may save when it likes
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

from pantile.errors import ExecutionError

PIPES = "PANTILE_PADDLE_PIPES"
"""The file descriptors of the pipes: of process 0 to all others, of another one to process 0."""
RANK = "PADDLE_TRAINER_ID"
COUNT = "PADDLE_TRAINERS_NUM"

Answer = Callable[[], Any]


@cache
def peers() -> Leader | Follower | None:
    """The processes this one was launched with; None if it is alone."""
    written = os.environ.get(PIPES)
    if not written:
        return None
    pipes = [Connection(int(number)) for number in written.split(",")]
    rank = int(os.environ[RANK])
    return Leader(pipes) if rank == 0 else Follower(pipes[0], rank, int(os.environ[COUNT]))


class Follower:
    """A process that asks process 0."""

    def __init__(self, pipe: Connection, rank: int, count: int) -> None:
        self._pipe, self.rank, self.count = pipe, rank, count
        self._programs = 0

    def new_program(self) -> int:
        """The number of the next program; all processes compile the same ones in one order."""
        self._programs += 1
        return self._programs

    def ask(self, kind: str, program: int, values: Any = None) -> Any:
        """Ask process 0, and wait for the answer."""
        try:
            self._pipe.send((kind, program, values))
            found, answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise _ended(0) from error
        if found:
            return answer
        raise ExecutionError(
            f"process 0 could not answer process {self.rank}: {answer}",
            fix="look at what process 0 said",
        )


class Leader:
    """Process 0: it runs the programs of all."""

    rank = 0

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes
        self.count = len(pipes) + 1
        self._programs = 0
        self._requests: dict[tuple[int, int], queue.Queue[Any]] = defaultdict(queue.Queue)
        self._weights: dict[int, Answer] = {}
        self._changed = threading.Condition()
        self._finished = False
        self._threads = [
            threading.Thread(target=self._serve, args=(place + 1, pipe), daemon=True)
            for place, pipe in enumerate(pipes)
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self._finish)

    def new_program(self) -> int:
        """The number of the next program; all processes compile the same ones in one order."""
        self._programs += 1
        return self._programs

    def offer_weights(self, program: int, answer: Answer) -> None:
        """What is to be said when a process asks for the weights of a program."""
        with self._changed:
            self._weights[program] = answer
            self._changed.notify_all()

    def gather(self, program: int) -> list[Any]:
        """What every other process wants to be run, in their order."""
        found = [self._requests[program, rank].get() for rank in range(1, self.count)]
        for rank, values in enumerate(found, 1):
            if values is None:
                raise _ended(rank)
        return found

    def answer(self, answers: Sequence[Any]) -> None:
        """Give every other process its share."""
        for pipe, values in zip(self._pipes, answers, strict=True):
            pipe.send((True, values))

    def refuse(self, why: str) -> None:
        """Tell every other process that there will be no answer."""
        for pipe in self._pipes:
            _send(pipe, (False, why))

    def _serve(self, rank: int, pipe: Connection) -> None:
        while True:
            try:
                kind, program, values = pipe.recv()
            except (EOFError, OSError):  # it ended; whoever waits for it is told
                for number in range(1, self._programs + 2):
                    self._requests[number, rank].put(None)
                return
            if kind == "weights":
                _send(pipe, (True, self._weights_of(program)))
            elif self._finished:
                _send(pipe, (False, "it has ended"))
            else:
                self._requests[program, rank].put(values)

    def _weights_of(self, program: int) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: program in self._weights)
            answer = self._weights[program]
        return answer()

    def _finish(self) -> None:
        """At the end, others may still ask for weights: stay until they have ended too."""
        self._finished = True
        for (_, rank), waiting in list(self._requests.items()):
            if not waiting.empty() and waiting.get() is not None:
                _send(self._pipes[rank - 1], (False, "it has ended"))
        for thread in self._threads:
            thread.join()


def _send(pipe: Connection, message: Any) -> None:
    with suppress(OSError):  # nobody may be there to hear it
        pipe.send(message)


def _ended(rank: int) -> ExecutionError:
    return ExecutionError(
        f"process {rank} of the run has ended",
        fix="look at what it said; all processes must run the same number of steps",
    )
