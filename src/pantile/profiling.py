"""Marking spans of host code, as PopTorch scripts do with PVTI channels.

Spans are handed to torch's own profiler, so they show up in its traces.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

T = TypeVar("T")


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
        with torch.profiler.record_function(f"{self.name}::{name}"):
            yield
