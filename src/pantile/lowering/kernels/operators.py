"""Operators of our own: parts of ATen's that have several results.

They are never called; a node of the graph that has one as target says what a kernel computes.
"""

from __future__ import annotations

from typing import Any


def conv_input(*_: Any) -> None:
    """Gradient of a convolution with respect to its input: (gradient, weight, geometry)."""


def conv_weight(*_: Any) -> None:
    """Gradient of a convolution with respect to its weight: (gradient, input, geometry)."""


def max_pool(*_: Any) -> None:
    """The largest value of each window: (input, window)."""


def max_pool_input(*_: Any) -> None:
    """Gradient of max_pool with respect to its input: (gradient, input, window)."""


def avg_pool(*_: Any) -> None:
    """The mean of each window: (input, window, what to divide by, divisor or 0)."""


def avg_pool_input(*_: Any) -> None:
    """Gradient of avg_pool with respect to its input: (gradient, window, how, divisor)."""


def fma(*_: Any) -> None:
    """a * b + c. Inductor's own, which is known only where Inductor was imported."""
