"""The C++ of a program: templates, kernels, and the row of their calls."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files

from torch import fx

from pantile.lowering.kernels.build import has_tiles
from pantile.lowering.kernels.calls import calls_text, layout
from pantile.lowering.kernels.memory import (
    BYTES,
    Buffer,
    Life,
    Place,
    Pointer,
    place_buffers,
    shared_places,
)
from pantile.lowering.kernels.setup import find_setup, inputs_of, keep_results
from pantile.lowering.kernels.sharing import Table, shared, skeleton
from pantile.lowering.kernels.types import dtype_of, shape_of
from pantile.lowering.kernels.writer import Function, Writer, result_strides

TEMPLATES = (
    "vector.h",
    "math.h",
    "halves.h",
    "operators.h",
    "lanes.h",
    "transpose.h",
    "pairs.h",
    "gemm_plan.h",
    "gemm_tile.h",
    "gemm.h",
    "tiles.h",
    "conv.h",
    "conv_pack.h",
    "conv_forward.h",
    "conv_input.h",
    "conv_weight.h",
    "conv_pairs.h",
    "winograd.h",
    "winograd_weight.h",
    "winograd_scatter.h",
    "depthwise.h",
    "pool.h",
    "avg_pool.h",
    "threads.h",
    "program.h",
)

_WORTH = 330
"""The least weight of kernels, in milliseconds, that a file of its own pays for."""

_FRAME, _CALL = 100, 0.25
"""The weight of the frame and of each call in the row."""

_CLOSER = 1.02
"""Limits of groups are tried in steps of so much."""

_LONG_ROW = 100
"""From so many calls on the compiler does not optimise their row: it is numbers and calls only."""

_BUFFER = re.compile(r"\bb\d+(?:_\d+)?\b")
_AXIS = re.compile(r"(?<![A-Za-z0-9])x\d+[oi]*")


@cache
def template(name: str) -> str:
    """The text of a template."""
    text = files("pantile.lowering.kernels").joinpath("templates", name).read_text("utf-8")
    return text.replace("#pragma once\n", "")


@dataclass(frozen=True)
class _Text:
    """One kernel in C++."""

    head: str
    body: str
    tables: tuple[Table, ...] = ()

    @cached_property
    def family(self) -> str:
        """The template it is made of."""
        return next(word for word in _FAMILIES if word in self.body)

    @property
    def weight(self) -> float:
        """About how many milliseconds it takes to compile."""
        cost = _FAMILIES[self.family]
        return cost.each + cost.plan * max(1, len(self.tables))


@dataclass(frozen=True)
class _Cost:
    """About how many milliseconds of gcc kernels of one template take."""

    each: float
    plan: float = 0
    """For each convolution that a kernel is given a plan of: its tiles."""
    first: float = 0
    """What all of them share."""


_FAMILIES = {
    "conv_forward_packing": _Cost(50),
    "pack_": _Cost(10, first=60),
    "winograd_weight": _Cost(35, first=165),
    "winograd": _Cost(35, 8, first=70),
    "conv_weight": _Cost(55, 17),
    "conv_by<": _Cost(30, 47),
    "conv_input<": _Cost(100),
    "conv_input_pairs<": _Cost(100),
    "conv_forward": _Cost(90),
    "depthwise": _Cost(45),
    "emm": _Cost(46, first=100),
    "pool": _Cost(30),
    "sums[": _Cost(25, first=20),
    "transposed_copy": _Cost(5, first=60),
    "": _Cost(13),
}
"""Measured on W1a, W3, W4, W5 and a MobileNet, one thread of a Zen 5."""


def sources(writer: Writer, most: int) -> list[str]:
    """The program as files, no more than `most`, that are compiled side by side."""
    setup = find_setup(writer.functions, writer.constant_inputs)
    kept = keep_results(writer.functions, setup)
    frame = _frame(writer, setup, _Sizes(place(writer), kept))
    kernels, calls = _kernels(writer.functions)
    once = [call for number, call in calls.items() if number in setup]
    stages: list[list[str]] = [[]]
    for number, function in enumerate(writer.functions):
        if function.call is not None:
            stages.append([])
        elif number not in setup:
            stages[-1].append(calls[number])
    units = _divided(kernels, most, len(writer.functions))
    rest = [text for unit in units[1:] for text in unit]
    end = [*_rows(once, stages), *_outside(writer), template("program_end.h")]
    heads = [table.declared for text in rest for table in text.tables]
    heads += [f"{text.head};" for text in rest]
    return [
        _unit(units[0], ["#define PANTILE_MAIN", frame, *heads], end),
        *(_unit(unit, [frame], []) for unit in units[1:]),
    ]


def _rows(once: Sequence[str], stages: Sequence[Sequence[str]]) -> list[str]:
    """The setup, and the kernels between calls."""
    rows = {f"run_kernels{n}": calls for n, calls in enumerate(stages) if calls or n == 0}
    names = ", ".join(
        f"run_kernels{n}" if calls or n == 0 else "nullptr" for n, calls in enumerate(stages)
    )
    table = f"static bool (*const stages[])(Context*, int, int) = {{{names}}};"
    return [_row("run_setup", once), *(_row(name, calls) for name, calls in rows.items()), table]


def _outside(writer: Writer) -> list[str]:
    """What is called between kernels; nothing in most programs."""
    if not any(function.call for function in writer.functions):
        return []
    return ["#define PANTILE_CALLS", template("calls.h"), calls_text(writer, _pointer)]


def _kernels(functions: Sequence[Function]) -> tuple[list[_Text], dict[int, str]]:
    """All different kernels, and the calls of them by their number."""
    alike: dict[tuple[str, str], list[int]] = {}
    texts: dict[int, str] = {}
    for number, function in enumerate(functions):
        if function.call is not None:
            continue
        signature, texts[number] = _canonical(function)
        alike.setdefault((signature, skeleton(texts[number])), []).append(number)
    kernels: list[_Text] = []
    calls: dict[int, str] = {}
    for (signature, _), numbers in alike.items():
        name = f"k{len(kernels)}"
        one = shared([texts[number] for number in numbers], name)
        given = f"int t, int T, Context* context, float* scratch{signature}{one.parameters}"
        head = f"void {name}({given})"
        note = functions[numbers[0]].note
        text = _noting(one.text) if functions[numbers[0]].can_fail else one.text
        body = f"{head} {{ // {note}\nCOUNT_KERNEL(context);\n{text}\n}}"
        kernels.append(_Text(head, body, one.tables))
        for number, arguments in zip(numbers, one.arguments, strict=True):
            calls[number] = _call(functions[number], name, number, arguments)
    return kernels, dict(sorted(calls.items()))


def _noting(text: str) -> str:
    """A kernel that notes in a variable of its own that something failed, and tells at the end."""
    begin, end = "i64 noted = 0, *const failed = &noted;", "if (noted) context->failed = 1;"
    return f"{begin}\n{text}\n{end}"


def _divided(kernels: Sequence[_Text], most: int, calls: int) -> list[list[_Text]]:
    """Kernels in groups that take about as long to compile, each worth its start.

    Those of one template stay together where they can: what they share is compiled once, and a file
    needs fewer templates. The first group also gets the frame and the row of calls.
    """
    order = [*_FAMILIES]
    kernels = sorted(kernels, key=lambda text: (-order.index(text.family), text.weight))
    begun = _FRAME + _CALL * calls
    shared = {text.family for text in kernels}
    total = begun + sum(text.weight for text in kernels) + sum(_FAMILIES[f].first for f in shared)
    count = max(1, min(most, int(total) // _WORTH))
    limit = total / count
    while len(groups := _filled(kernels, begun, limit)) > count:
        limit *= _CLOSER
    return groups


def _filled(kernels: Sequence[_Text], begun: float, limit: float) -> list[list[_Text]]:
    """One group after the other, each up to a limit; the first has begun already."""
    groups: list[list[_Text]] = [[]]
    cost, known = begun, set[str]()
    for text in kernels:
        more = text.weight + (0 if text.family in known else _FAMILIES[text.family].first)
        if cost + more > limit and groups[-1]:
            groups.append([])
            known.clear()
            cost, more = 0, text.weight + _FAMILIES[text.family].first
        groups[-1].append(text)
        known.add(text.family)
        cost += more
    return groups


def _unit(kernels: Sequence[_Text], before: Sequence[str], after: Sequence[str]) -> str:
    bodies = [text.body for text in kernels]
    tables = [table.defined for text in kernels for table in text.tables]
    used = [template(name) for name in TEMPLATES if _is_used(name, [*bodies, *tables, *before])]
    if has_tiles():
        used.insert(0, "#define PANTILE_TILES")
    texts = [f"APART_SHARED {body}" for body in bodies]
    return "\n".join([*used, *before, *tables, *texts, *after])


def _is_used(name: str, kernels: Sequence[str]) -> bool:
    """Templates that no kernel needs only cost time to compile."""
    words = {
        "halves.h": ("bf16", "fp16"),
        "lanes.h": ("emm<", "Conv<", "transposed_copy"),
        "transpose.h": ("transposed_copy",),
        **dict.fromkeys(("gemm_plan.h", "gemm_tile.h", "gemm.h"), ("emm<",)),
        "tiles.h": ("emm<",) if has_tiles() else (),
        "conv_pairs.h": ("Pairs<", "_pairs<"),
        "winograd.h": ("Winograd", "winograd"),
        "winograd_weight.h": ("WinogradWeight<", "winograd_weight"),
        "winograd_scatter.h": ("WinogradScatter<", "winograd_scatter"),
        "pool.h": ("Pool<",),
        "avg_pool.h": ("avg_pool",),
        "depthwise.h": ("depthwise",),
    }
    if name == "pairs.h":
        return all(_is_used(other, kernels) for other in ("gemm.h", "halves.h"))
    found = words.get(name, ("Conv<",) if name.startswith("conv") else ("",))
    return any(word in kernel for kernel in kernels for word in found)


def place(writer: Writer) -> int:
    """Give all buffers their place in the arena; the bytes of that."""
    lives: dict[Buffer, list[int]] = {}
    for number, function in enumerate(writer.functions):
        for pointer in function.used:
            if pointer.buffer.root.place is Place.ARENA:
                lives.setdefault(pointer.buffer.root, []).append(number)
    # In the order of the reads, since the first that fits is taken: the text is the same each time.
    over: dict[Buffer, list[Buffer]] = {}
    for function in writer.functions:
        for new, old in function.over:
            if new.root in lives and old.root in lives:
                over.setdefault(new, []).append(old)
    found = [Life(buffer, min(used), max(used)) for buffer, used in lives.items()]
    return place_buffers(shared_places(found, over))


def _canonical(function: Function) -> tuple[str, str]:
    """Parameters and text, with names that are the same for equal kernels."""
    numbers = {pointer.name: f"p{i}" for i, pointer in enumerate(function.used)}
    axes: dict[str, str] = {}

    def axis(found: re.Match[str]) -> str:
        return axes.setdefault(found[0], f"i{len(axes)}_")

    text = _AXIS.sub(axis, function.text)
    text = _BUFFER.sub(lambda found: numbers[found[0]], text)
    # Without this promise short loops are not vectorised. Places in one buffer may not make it.
    homes = Counter(pointer.buffer.home for pointer in function.used)
    parameters = "".join(
        f", {p.buffer.cpp}* {'__restrict ' if homes[p.buffer.home] == 1 else ''}{numbers[p.name]}"
        for p in function.used
    )
    return parameters, text


def _call(function: Function, name: str, number: int, numbers: str) -> str:
    pointers = ", ".join(_pointer(pointer) for pointer in function.used)
    text = f"RUN({number}, {name}(t, T, context, scratch, {pointers}{numbers})); meet(context, T);"
    return text + (" if (stopped(context, T)) return false;" if function.can_fail else "")


def _pointer(pointer: Pointer) -> str:
    buffer = pointer.buffer.root
    first = pointer.offset + pointer.buffer.start_in_root
    where = {
        Place.INPUT: f"context->inputs[{buffer.number}]",
        Place.OUTPUT: f"context->results[{buffer.number}]",
        Place.ARENA: f"(arena + {buffer.home.offset})",
        Place.KEPT: f"(kept + {buffer.offset})",
        Place.MADE: f"context->made_data[{buffer.number}]",
    }
    offset = f" + {first}" if first else ""
    return f"({buffer.cpp}*){where[buffer.place]}{offset}"


@dataclass(frozen=True)
class _Sizes:
    """The memory of a program, in bytes."""

    arena: int
    kept: int


def _frame(writer: Writer, setup: Collection[int], sizes: _Sizes) -> str:
    inputs, outputs = len(writer.plan.inputs), writer.plan.outputs
    constants = inputs_of(writer.functions, setup)
    calls = sum(function.call is not None for function in writer.functions)
    needs = sorted(set(writer.scratch))
    largest = "0"
    for need in needs:
        largest = f"larger({largest}, {need})"
    lines = [
        "constexpr i64 larger(i64 a, i64 b) { return a > b ? a : b; }",
        f"constexpr int INPUTS = {inputs}, OUTPUTS = {len(outputs)}, MOST_THREADS = 64;",
        f"constexpr int CALLS = {calls}, MADE = {len(writer.made)};",
        f"constexpr i64 KERNELS = {len(writer.functions)}, SETUP_KERNELS = {len(setup)};",
        f"constexpr u64 ARENA = {sizes.arena}, KEPT = {sizes.kept};",
        f"constexpr u64 SCRATCH = {largest} + 64;",
        "struct Context { char *arena, *kept; float* scratch[MOST_THREADS];",
        "Keep keep; u64 sample; i64 setups; bool is_set_up, skips_setup;",
        "int threads, failed, team_size;",
        "void* inputs[INPUTS + 1]; void* results[OUTPUTS + 1]; void* handles[OUTPUTS + 1];",
        "int stage; void** tensors; void *made[MADE + 1], *made_data[MADE + 1];",
        "const char* error; i64 ran; Team team; };",
        template("checked.h"),
        # Not inline: gcc would write the row of all calls twice, for T == 1 and for others, and
        # that took it 0.25 s of W3.
        "APART void meet(Context* context, int T) { if (T > 1) barrier(&context->team); }",
        "// All threads look before one of them begins the next kernel, which may fail as well.",
        "INLINE bool stopped(Context* context, int T) {",
        "const bool stop = context->failed; meet(context, T); return stop; }",
        "static const Output outputs[OUTPUTS + 1] = {",
        *(_output(node) for node in outputs),
        "};",
        f"constexpr int CONSTANTS = {len(constants)};",
        "static const Constant constants[CONSTANTS + 1] = {",
        *(f"{{{buffer.number}, {buffer.size * BYTES[buffer.cpp]}}}," for buffer in constants),
        "};",
    ]
    return "\n".join(lines)


def _output(node: fx.Node) -> str:
    value = node.meta["val"]
    size = value.numel() * value.element_size()
    return layout(shape_of(node), result_strides(value), dtype_of(node), size)


def _row(name: str, calls: Sequence[str]) -> str:
    """A function that calls kernels one after another; false if one of them failed."""
    body = "\n".join(calls)
    plain = "UNOPTIMISED " if len(calls) >= _LONG_ROW else ""
    return (
        f"{plain}static bool {name}(Context* context, int t, int T) {{\n"
        "char *const arena = context->arena, *const kept = context->kept;\n"
        f"float* const scratch = context->scratch[t];\n{body}\nreturn true; }}"
    )
