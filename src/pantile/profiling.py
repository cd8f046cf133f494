"""Marking spans of host code, as PopTorch scripts do with PVTI channels.

    PVTI_OPTIONS='{"enable":"true", "directory":"traces"}' python train.py
        ──►  traces/pantile_<pid>.json          for chrome://tracing or ui.perfetto.dev

    channel ─ one row of the trace ─  |── epoch ──────────────────────|
                                         |─ load ─| |─ step ─| …

Without `PVTI_OPTIONS` nothing is written. Either way spans are handed to torch's own profiler, so
they show up in its traces too.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")

VARIABLE = "PVTI_OPTIONS"
"""The environment variable: JSON with `enable` and `directory`, or just a non-empty text."""


class Channel:
    """A named group of spans."""

    def __init__(self, name: str) -> None:
        self.name = name

    def instrument(self, obj: T, *methods: str) -> T:
        """Turn every call of these methods of `obj` into a span; returns `obj`."""
        for method in methods:
            setattr(obj, method, self._spanned(getattr(obj, method), method))
        return obj

    def _spanned(self, function: Any, name: str) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self.tracepoint(name):
                return function(*args, **kwargs)

        return wrapper

    @contextmanager
    def tracepoint(self, name: str) -> Iterator[None]:
        """A span from here to the end of the scope."""
        trace = _trace()
        begin = time.perf_counter_ns()
        try:
            with torch.profiler.record_function(f"{self.name}::{name}"):
                yield
        finally:
            if trace is not None:
                trace.add(self.name, name, begin, time.perf_counter_ns())


class _TraceFile:
    """The spans of this process, written when it ends."""

    def __init__(self, directory: str) -> None:
        self._path = Path(directory) / f"pantile_{os.getpid()}.json"
        self._process = os.getpid()
        self._events: list[dict[str, Any]] = []
        self._channels: dict[str, int] = {}
        self._lock = threading.Lock()
        atexit.register(self.write)

    def add(self, channel: str, name: str, begin: int, end: int) -> None:
        """Note a span; times are in nanoseconds."""
        with self._lock:
            row = self._channels.setdefault(channel, len(self._channels) + 1)
            span = {"ph": "X", "pid": self._process, "tid": row, "cat": channel, "name": name}
            self._events.append({**span, "ts": begin / 1000, "dur": (end - begin) / 1000})

    def write(self) -> None:
        """Write what was noted; a forked process leaves its parent's spans alone."""
        if os.getpid() != self._process:
            return
        with self._lock:
            names = [
                {"ph": "M", "pid": self._process, "tid": row, "name": "thread_name",
                 "args": {"name": channel}}
                for channel, row in self._channels.items()
            ]  # fmt: skip
            text = json.dumps({"traceEvents": names + self._events, "displayTimeUnit": "ms"})
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Not the store's atomic files: this layer is below it.
            unfinished = self._path.with_suffix(".unfinished")
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(self._path)


_traces: dict[tuple[int, str], _TraceFile] = {}


def _trace() -> _TraceFile | None:
    """Where spans go, as the environment says now."""
    directory = _directory(os.environ.get(VARIABLE, ""))
    if directory is None:
        return None
    key = (os.getpid(), directory)
    if key not in _traces:
        _traces[key] = _TraceFile(directory)
    return _traces[key]


@functools.lru_cache(maxsize=4)
def _directory(options: str) -> str | None:
    if not options.strip():
        return None
    try:
        given = json.loads(options)
    except ValueError:
        given = {}
    if not isinstance(given, dict):
        given = {}
    if str(given.get("enable", "true")).lower() in ("false", "0"):
        return None
    return str(given.get("directory", "."))
