"""Means of windows of images, and their gradient."""

from __future__ import annotations

from typing import Any

from torch import fx

from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.rules.images import emit_images, image, named_axes
from pantile.lowering.kernels.rules.pool import Pool
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import shape_of
from pantile.lowering.kernels.writer import Writer


class AvgPool(Pool):
    """The mean of each window."""

    function = "avg_pool"

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernel."""
        node = kernel.anchor
        other: Any = node.args[0]
        given = image(writer, other)
        steps = [given.strides[0], given.strides[2], given.strides[3]]
        window, how, divisor = node.args[1:4]
        call = (
            f"{self.function}<{self._form(node, other, window, steps)}, {how}, {divisor}>"
            f"({given.pointer.name}"
        )
        axes = named_axes(node, "n c h w")
        emit_images(kernel, writer, Trace(writer.plan), axes, call, [given.pointer])

    def _form(self, node: fx.Node, other: fx.Node, window: Any, steps: list[int]) -> str:
        """The pooling as a C++ type."""
        numbers = [*shape_of(other), *shape_of(node)[2:], *window, *steps]
        return f"Pool<{', '.join(map(str, numbers))}>"


class AvgPoolInput(AvgPool):
    """Every pixel gets its share of the windows it is in."""

    function = "avg_pool_input"

    def _form(self, node: fx.Node, other: fx.Node, window: Any, steps: list[int]) -> str:
        numbers = [*shape_of(node), *shape_of(other)[2:], *window, 0, 0, 0, *steps]
        return f"Pool<{', '.join(map(str, numbers))}>"
