"""The C++ file of a program: templates, kernels, and the row of their calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from torch import fx

from pantile.lowering.kernels.memory import Buffer, Place, Pointer, place_buffers
from pantile.lowering.kernels.types import dtype_of
from pantile.lowering.kernels.writer import Function, Writer

TEMPLATES = (
    "vector.h",
    "math.h",
    "operators.h",
    "gemm.h",
    "conv.h",
    "conv_forward.h",
    "conv_input.h",
    "conv_weight.h",
    "pool.h",
    "threads.h",
    "program.h",
)

_BUFFER = re.compile(r"\bb\d+(?:_\d+)?\b")
_AXIS = re.compile(r"(?<![A-Za-z0-9])x\d+[oi]*")


@cache
def template(name: str) -> str:
    """The text of a template."""
    text = files("pantile.lowering.kernels").joinpath("templates", name).read_text("utf-8")
    return text.replace("#pragma once\n", "")


def source(writer: Writer) -> str:
    """All of it."""
    arena = _place(writer)
    names: dict[str, str] = {}
    kernels: list[str] = []
    calls: list[str] = []
    for function in writer.functions:
        signature, body = _canonical(function)
        name = names.get(signature + body)
        if name is None:
            name = names[signature + body] = f"k{len(names)}"
            kernels.append(
                f"// {function.note}\nAPART void {name}(int t, int T, Context* context,"
                f" float* scratch{signature}) {{\n"
                f"int* const failed = &context->failed; COUNT_KERNEL(context);\n{body}\n}}"
            )
        calls.append(_call(function, name, len(calls)))
    parts = [
        *(template(name) for name in TEMPLATES if _is_used(name, kernels)),
        _frame(writer, arena),
        *kernels,
        _run(calls),
        template("program_end.h"),
    ]
    return "\n".join(parts)


def _is_used(name: str, kernels: Sequence[str]) -> bool:
    """Templates that no kernel needs only cost time to compile."""
    words = {"gemm.h": "gemm<", "pool.h": "Pool<"}
    word = words.get(name, "Conv<" if name.startswith("conv") else "")
    return any(word in kernel for kernel in kernels)


def _place(writer: Writer) -> int:
    lives: dict[Buffer, list[int]] = {}
    for place, function in enumerate(writer.functions):
        for pointer in function.used:
            if pointer.buffer.root.place is Place.ARENA:
                lives.setdefault(pointer.buffer.root, []).append(place)
    return place_buffers((b, min(used), max(used)) for b, used in lives.items())


def _canonical(function: Function) -> tuple[str, str]:
    """Parameters and text, with names that are the same for equal kernels."""
    numbers = {pointer.name: f"p{i}" for i, pointer in enumerate(function.used)}
    axes: dict[str, str] = {}

    def axis(found: re.Match[str]) -> str:
        return axes.setdefault(found[0], f"i{len(axes)}_")

    text = _AXIS.sub(axis, function.text)
    text = _BUFFER.sub(lambda found: numbers[found[0]], text)
    parameters = "".join(f", {p.buffer.cpp}* {numbers[p.name]}" for p in function.used)
    return parameters, text


def _call(function: Function, name: str, number: int) -> str:
    arguments = ", ".join(_pointer(pointer) for pointer in function.used)
    text = f"RUN({number}, {name}(t, T, context, scratch, {arguments})); meet(context, T);"
    return text + (" if (context->failed) return;" if function.can_fail else "")


def _pointer(pointer: Pointer) -> str:
    buffer = pointer.buffer.root
    first = pointer.offset + pointer.buffer.start_in_root
    where = {
        Place.INPUT: f"context->inputs[{buffer.number}]",
        Place.OUTPUT: f"context->results[{buffer.number}]",
        Place.ARENA: f"(arena + {buffer.offset})",
    }
    offset = f" + {first}" if first else ""
    return f"({buffer.cpp}*){where[buffer.place]}{offset}"


def _frame(writer: Writer, arena: int) -> str:
    inputs, outputs = len(writer.plan.inputs), writer.plan.outputs
    needs = sorted(set(writer.scratch))
    largest = "0"
    for need in needs:
        largest = f"larger({largest}, {need})"
    lines = [
        "constexpr i64 larger(i64 a, i64 b) { return a > b ? a : b; }",
        f"constexpr int INPUTS = {inputs}, OUTPUTS = {len(outputs)}, MOST_THREADS = 64;",
        f"constexpr i64 KERNELS = {len(writer.functions)};",
        f"constexpr u64 ARENA = {arena};",
        f"constexpr u64 SCRATCH = {largest} + 64;",
        "struct Context { char* arena; float* scratch[MOST_THREADS];",
        "int threads, failed, team_size;",
        "void* inputs[INPUTS + 1]; void* results[OUTPUTS + 1]; void* handles[OUTPUTS + 1];",
        "const char* error; i64 ran; Team team; };",
        template("checked.h"),
        "INLINE void meet(Context* context, int T) { if (T > 1) barrier(&context->team); }",
        "static const Output outputs[OUTPUTS + 1] = {",
        *(_output(node) for node in outputs),
        "};",
    ]
    return "\n".join(lines)


def _output(node: fx.Node) -> str:
    value = node.meta["val"]
    sizes, strides = (
        ", ".join(str(int(number)) for number in numbers)
        for numbers in (value.shape, value.stride())
    )
    dtype = str(dtype_of(node)).removeprefix("torch.")
    size = value.numel() * value.element_size()
    return f"{{{value.dim()}, {{{sizes}}}, {{{strides}}}, aoti_torch_dtype_{dtype}, {size}}},"


def _run(calls: Sequence[str]) -> str:
    body = "\n".join(calls)
    return (
        "static void run_kernels(Context* context, int t, int T) {\n"
        "char* const arena = context->arena; float* const scratch = context->scratch[t];\n"
        f"{body}\n}}"
    )
