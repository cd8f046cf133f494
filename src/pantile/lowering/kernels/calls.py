"""The C++ of operators that are called outside, and of the stages between them.

    run_kernels0 ── call0 ── run_kernels1 ── call1 ── run_kernels2

All threads run the kernels of a stage; the calls are made by one, which may start others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx

from pantile.lowering.kernels.memory import BYTES, Pointer
from pantile.lowering.kernels.writer import Call, View, Writer

PointerText = Callable[[Pointer], str]


def layout(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, size: int) -> str:
    """Shape and strides of a tensor, and its bytes, as the frame of a program has them."""
    sizes, steps = (", ".join(map(str, numbers)) for numbers in (shape, strides))
    name = str(dtype).removeprefix("torch.")
    return f"{{{len(shape)}, {{{sizes}}}, {{{steps}}}, aoti_torch_dtype_{name}, {size}}},"


def calls_text(writer: Writer, pointer: PointerText) -> str:
    """The functions of all calls, and the table of them."""
    calls = [function.call for function in writer.functions if function.call is not None]
    functions = [_function(writer, call, number, pointer) for number, call in enumerate(calls)]
    names = "".join(f"call{number}, " for number in range(len(calls)))
    table = f"static int (*const calls[CALLS + 1])(Context*) = {{{names}nullptr}};"
    return "\n".join([*functions, table])


def _function(writer: Writer, call: Call, number: int, pointer: PointerText) -> str:
    views = [operand for operand in call.operands if isinstance(operand, View)]
    layouts = [
        layout(v.shape, v.strides, v.dtype, BYTES[v.pointer.buffer.cpp] * v.pointer.buffer.size)
        for v in views
    ]
    count = len(call.operands)
    size = f"{count} + {call.results}"
    lines = [
        f"static int call{number}(Context* context) {{ // {call.what.node.target}",
        "char *const arena = context->arena, *const kept = context->kept;",
        f"static const Output views[] = {{{''.join(layouts)}{{}}}};",
        f"void* tensors[{size} + 1];",
        f"Outside outside = {{{number}, {count}, {call.first}, {call.results}, tensors}};",
    ]
    for operand in call.operands:
        if isinstance(operand, View):
            layout_of = f"views[{views.index(operand)}]"
            lines.append(f"outside.view({pointer(operand.pointer)}, {layout_of});")
        else:
            lines.append(f"outside.share({_tensor(writer, operand)});")
    lines.append("return outside.call(context); }")
    return "\n".join(lines)


def _tensor(writer: Writer, node: fx.Node) -> str:
    """A tensor that there is."""
    if node.op == "placeholder":
        return f"context->tensors[{writer.plan.inputs.index(node)}]"
    return f"context->made[{writer.made[node]}]"
