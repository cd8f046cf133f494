"""Who hears that a program was compiled: planners, reports, the registry of running executors.

compiled ──► listeners of this thread (pantile plan, tests)
         ──► a report, if profiling is on
         ──► the registry `pantile monitor` reads
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pantile.runtime.compiled import Compiled
from pantile.runtime.registry import register
from pantile.runtime.reports import report_directory, write_report

if TYPE_CHECKING:
    from pantile.runtime.executor import PoplarExecutor

Listener = Callable[["PoplarExecutor", Compiled], None]


class _Listeners(threading.local):
    def __init__(self) -> None:
        self.all: list[Listener] = []


_listeners = _Listeners()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` with every program this thread compiles in the scope."""
    _listeners.all.append(listener)
    try:
        yield
    finally:
        _listeners.all.remove(listener)


def compiled(executor: PoplarExecutor, program: Compiled) -> None:
    """A program was compiled."""
    for listener in tuple(_listeners.all):
        listener(executor, program)
    register(executor, program)
    directory = report_directory(executor._options)
    if directory is not None:
        write_report(executor, program, directory)
