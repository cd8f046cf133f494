"""What the reference engine makes of a program's samples, computed while a compiler works.

    this thread     kernels are planned and written ──▶ wait for g++ ──▶ first run ──▶ compare
    another one     copies, reference engine, one thread ─────────────────────────────────┘

Python plans on one core while the others rest, so the answer costs next to nothing there. What
would take longer than the compiler is computed when it is asked for, if it is.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future

import torch

from pantile.errors import Error
from pantile.logging import logger
from pantile.lowering.prepare import Prepared
from pantile.lowering.reference import ReferenceExecutable
from pantile.lowering.torch_threads import torch_threads
from pantile.program.estimate import cost_of

Results = list[torch.Tensor] | None
"""Results of a program, then its inputs after it; None if it fails."""

MOST_WORK = 1 << 38
"""Operations of a program that is run ahead: some seconds of one core."""

_FOR_A_BYTE = 8
"""As many operations as it takes to move a byte."""

_MOST_SECONDS = 120.0


class Expectation:
    """The right results of a program for some values, which may be written to afterwards.

    The reference engine writes to a copy of its own; nobody keeps the values as they were.
    """

    def __init__(self, prepared: Prepared, values: Sequence[torch.Tensor]) -> None:
        self._prepared = prepared
        with torch_threads(1):
            self._values = [copied(value) for value in values]
        self._ahead: Future[Results] | None = None

    def start(self) -> Expectation:
        """Compute them in the background, if that is no more than a compiler has to do.

        Python waits for the thread when it ends: it is never ended inside a kernel of torch's.
        """
        self._ahead = Future()
        threading.Thread(target=self._work, args=(self._ahead,), name="pantile-expected").start()
        return self

    def results(self) -> Results:
        """The results, when they are there."""
        if self._ahead is not None:
            try:
                return self._ahead.result(_MOST_SECONDS)
            except _TooMuch:
                pass
            except TimeoutError:
                logger.debug("the reference engine is not done in time, nothing was checked")
                return None
        return results_of(self._prepared, self._values)

    def _work(self, ahead: Future[Results]) -> None:
        try:
            cost = cost_of(self._prepared.program.graph.nodes)
            if cost.flops + _FOR_A_BYTE * cost.bytes > MOST_WORK:
                raise _TooMuch
            with torch_threads(1):
                results = results_of(self._prepared, self._values)
            ahead.set_result(results)
        except BaseException as error:
            ahead.set_exception(error)


class _TooMuch(Exception):
    """The program is not run ahead."""


def results_of(prepared: Prepared, values: Sequence[torch.Tensor]) -> Results:
    """What the reference engine makes of values, and these after it; None if it fails.

    The values are written to, and are among the results.
    """
    try:
        results = ReferenceExecutable(prepared.program).run(values)
    except (Error, RuntimeError, IndexError, ValueError) as error:
        # Labels out of range, for example: the run itself will say so, with the user's line.
        logger.debug("the program fails on the samples, it was not checked: %s", error)
        return None
    return [*results, *values]


def copied(value: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides. What lies in several places at once is never written to."""
    copy = value.clone()
    return copy if copy.stride() == value.stride() else value
