"""Operators that are called outside: they get memory as it lies, and make their own."""

from __future__ import annotations

from torch import fx

from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.index import Axis
from pantile.lowering.kernels.memory import Pointer
from pantile.lowering.kernels.operand import strided
from pantile.lowering.kernels.outside import call_of, is_outside, makes_call, results_of
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.rules.elementwise import copy
from pantile.lowering.kernels.types import dtype_of, shape_of
from pantile.lowering.kernels.writer import View, Writer


class Outside(Family):
    """A call between kernels."""

    has_epilogue = False

    def operands(self, node: fx.Node) -> list[fx.Node]:
        """All tensors it is given."""
        return [operand for operand in node.args[2:] if isinstance(operand, fx.Node)]

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the call, if this is its first result."""
        node = kernel.anchor
        if not makes_call(node):
            return
        operands = [_operand(writer, operand) for operand in self.operands(node)]
        writer.call(call_of(node), operands, node)
        for result in results_of(node):
            if result in writer.returned:
                to = writer.output(result, writer.returned[result])
                copy(writer, result, to, "returned:")


def _operand(writer: Writer, node: fx.Node) -> fx.Node | View:
    """A tensor that there is, or memory as it lies."""
    if node.op == "placeholder" or is_outside(node):
        return node
    found = strided(writer, node, [Axis(size) for size in shape_of(node)])
    pointer = Pointer(found.pointer.buffer, found.pointer.offset + found.batch.constant)
    return View(pointer, shape_of(node), found.strides, dtype_of(node))
