"""Max pooling of images, and its gradient."""

from __future__ import annotations

from typing import Any

from torch import fx

from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.index import Affine, Axis
from pantile.lowering.kernels.memory import Buffer
from pantile.lowering.kernels.operand import Operand
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.radix import Radix
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.rules.images import emit_images, image, named_axes
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import dtype_of, in_float, shape_of
from pantile.lowering.kernels.writer import Writer


class Pool(Family):
    """Windows of images."""

    function = ""
    images = 1
    """How many of the arguments are images."""

    def check(self, node: fx.Node) -> None:
        """Only images, of what is computed in float."""
        if not in_float(dtype_of(node)) or len(shape_of(node)) != 4:
            raise Refused(f"pooling of {dtype_of(node)} in {len(shape_of(node)) - 2} dims")

    def operands(self, node: fx.Node) -> list[fx.Node]:
        """The images."""
        return list(node.args[: self.images])  # type: ignore[arg-type]

    def takes(self, anchor: fx.Node, radix: Radix) -> bool:
        """Channels, which are the lanes, are not cut."""
        return len(radix[1]) <= 1

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernel."""
        node = kernel.anchor
        given = [image(writer, argument) for argument in self.operands(node)]
        pointers = ", ".join(operand.pointer.name for operand in given)
        call = f"{self.function}<{_form(node, given)}>({pointers}"
        axes = named_axes(node, "n c h w")
        read = [operand.pointer for operand in given]
        over = self.over(node, given, axes)
        emit_images(kernel, writer, Trace(writer.plan), axes, call, read, over=over)

    def over(
        self, node: fx.Node, given: list[Operand], axes: list[Axis]
    ) -> list[tuple[Buffer, Affine | None]]:
        """All images that are read, and where; nothing if no result may be written over one."""
        return []


class MaxPool(Pool):
    """The largest value of each window."""

    function = "max_pool"


class MaxPoolInput(Pool):
    """The gradient goes to where the largest value was."""

    function = "max_pool_input"
    images = 2

    def over(
        self, node: fx.Node, given: list[Operand], axes: list[Axis]
    ) -> list[tuple[Buffer, Affine | None]]:
        """A window that overlaps no other is read before any of its pixels is written."""
        window: Any = node.args[2]
        size, stride, padding, dilation = window
        apart = all(k <= s for k, s in zip(size, stride, strict=True))
        if not apart or any(padding) or any(d != 1 for d in dilation):
            return []
        gradient, x = given
        place = Affine(x.pointer.offset)
        for axis, step in zip(axes, x.strides, strict=True):
            place += Affine.of(axis) * step
        return [(gradient.pointer.buffer, None), (x.pointer.buffer, place)]


def _form(node: fx.Node, given: list[Operand]) -> str:
    """The pooling as a C++ type."""
    window: Any = node.args[len(given)]
    source, results = (node.args[0], node) if len(given) == 1 else (node, node.args[0])
    n, c, h, w = shape_of(source)  # type: ignore[arg-type]
    oh, ow = shape_of(results)[2:]  # type: ignore[arg-type]
    numbers = [n, c, h, w, oh, ow, *(number for pair in window for number in pair)]
    for operand in reversed(given):  # x, then the gradient
        numbers += [operand.strides[0], operand.strides[2], operand.strides[3]]
    return f"Pool<{', '.join(map(str, numbers))}>"
