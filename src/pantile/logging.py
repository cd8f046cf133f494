"""The log: one Python logger with PopTorch's name, levels, format and environment variables.

    [12:00:00.123] [poptorch::python] [warning] message

| variable             | meaning                                                              |
|----------------------|----------------------------------------------------------------------|
| `POPTORCH_LOG_LEVEL` | a level name or number                                               |
| `POPTORCH_LOG_DEST`  | `stderr` (default), `stdout`, or a file to append to                 |
| `POPTORCH_STRICT`    | 1: uncaught exceptions are logged as critical, faults dump a trace   |

Records propagate, so handlers on the root logger (and pytest's caplog) see them too.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from types import TracebackType

from pantile.errors import OptionError

logger = logging.getLogger("poptorch::python")

TRACE = 5
_OFF = logging.CRITICAL + 10

#: Public name -> (PopTorch's number, level of Python's logging).
_LEVELS = {
    "TRACE": (0, TRACE),
    "DEBUG": (1, logging.DEBUG),
    "INFO": (2, logging.INFO),
    "WARN": (3, logging.WARNING),
    "ERR": (4, logging.ERROR),
    "OFF": (6, _OFF),
}
#: Accepted as well, but not advertised.
_INTERNAL = {"TRACE_ALL": TRACE, "DEBUG_IR": logging.DEBUG}


def setLogLevel(level: str | int) -> None:
    """Log only what is at least as serious as `level`.

    Levels are "TRACE", "DEBUG", "INFO", "WARN", "ERR" and "OFF", or their numbers 0, 1, 2, 3, 4
    and 6.
    """
    logger.setLevel(_python_level(level))


def set_backend_log_level(level: str) -> None:
    """Check a level of the old backend's own log; it has none here, so nothing is filtered by it.

    `POPART_LOG_LEVEL` is accepted for the same reason.
    """
    if level not in _LEVELS:
        raise OptionError(
            f"Level must be one of {', '.join(_LEVELS)}, not {level!r}",
            fix="pass one of these names",
        )


def _python_level(level: str | int) -> int:
    if isinstance(level, str):
        names = {name: python for name, (_, python) in _LEVELS.items()} | _INTERNAL
        if level not in names:
            *most, last = sorted(_LEVELS)
            raise OptionError(
                f"Unknown log level: {level}. Valid values are {', '.join(most)} and {last}",
                fix=f"pass one of {', '.join(_LEVELS)}",
            )
        return names[level]
    numbers = dict(_LEVELS.values())
    if isinstance(level, bool) or level not in numbers:
        raise OptionError(
            f"Invalid log level integer: level={level!r}",
            fix="pass one of " + ", ".join(f"{n} ({name})" for name, (n, _) in _LEVELS.items()),
        )
    return numbers[level]


class RepeatLimit(logging.Filter):
    """Leaves out a line that was logged `limit` times in a row already (Options.maxRepeatLogs)."""

    def __init__(self) -> None:
        super().__init__()
        self.limit: int | None = None
        self._last = ""
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Is this line to be shown?"""
        line = f"{record.levelname} {record.getMessage()}"
        self._count = self._count + 1 if line == self._last else 1
        self._last = line
        return self.limit is None or self._count <= max(self.limit, 1)


repeat_limit = RepeatLimit()
"""How often a line may follow itself; an executor sets it when it is made."""


class _Formatter(logging.Formatter):
    def __init__(self) -> None:
        line = "[%(asctime)s.%(msecs)03d] [poptorch::python] [%(lowered)s] %(message)s"
        super().__init__(line, datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        record.lowered = record.levelname.lower()
        return super().format(record)


class _Stream(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever `sys.stderr` (or `stdout`) is now: it may be replaced after import."""

    def __init__(self, name: str) -> None:
        logging.Handler.__init__(self)
        self._name_of_stream = name

    @property
    def stream(self) -> object:
        return getattr(sys, self._name_of_stream)


def _handler(destination: str) -> logging.Handler:
    if destination in ("", "stderr", "stdout"):
        return _Stream(destination or "stderr")
    return logging.FileHandler(destination, delay=True)


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    logger.critical("Unhandled exception", exc_info=(kind, error, trace))


def configure() -> None:
    """Set the logger up from the environment. Doing it again replaces what was set up before."""
    logging.addLevelName(TRACE, "TRACE")
    for handler in logger.handlers[:]:
        if isinstance(handler.formatter, _Formatter):
            logger.removeHandler(handler)
            handler.close()
    handler = _handler(os.environ.get("POPTORCH_LOG_DEST", ""))
    handler.setFormatter(_Formatter())
    handler.addFilter(repeat_limit)
    logger.addHandler(handler)
    level = os.environ.get("POPTORCH_LOG_LEVEL", "WARN")
    setLogLevel(int(level) if level.isdecimal() else level)
    if os.environ.get("POPTORCH_STRICT", "0") not in ("", "0"):
        sys.excepthook = _log_uncaught
        faulthandler.enable(sys.__stderr__ or sys.stderr)


configure()
