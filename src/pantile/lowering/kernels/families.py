"""What the planner must know of a kind of kernel; `rules/` has one file for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import fx

from pantile.lowering.kernels.radix import Radix


class Family(ABC):
    """How kernels of one kind are planned and written."""

    has_epilogue = True
    """Can other values be computed from the elements of its result as they come?"""
    reads_apart = True
    """Does it read elsewhere than where it writes?"""

    def check(self, node: fx.Node) -> None:
        """Refuse what cannot be written; as a rule, everything can."""
        return

    def operands(self, node: fx.Node) -> list[fx.Node]:
        """The arguments that must have memory."""
        return []

    def takes(self, anchor: fx.Node, radix: Radix) -> bool:
        """Can a value with this radix be computed on the way?"""
        return True

    @abstractmethod
    def emit(self, kernel: Any, writer: Any) -> None:
        """Write a Kernel with a Writer."""
