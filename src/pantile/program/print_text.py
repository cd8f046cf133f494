"""Print a Program: one node a line, in the order of the graph.

    program gradients
      param   %fc_weight  "fc.weight"  float32[4, 8]
      arg     %x          "x"          float32[2, 8]
      const   "c0"  float32[3]  [1.0, 2.0, 3.0]
      graph   "true_graph_0"
        input   %arg0_1  float32[3]
        %sin     = aten.sin.default(%arg0_1)     -> float32[3]
        return  (%sin,)
      end
      %addmm   = aten.addmm.default(%b, %x, %t)  -> float32[2, 4]  # forward stage=0 fc model.py:12
      %tanh    = aten.tanh.default(%addmm)       -> float32[2, 4]  # forward stage=1 block=head
      %mul_1   = operator.mul(%lr, 0.9)          -> scalar
      write   %fc_weight <- %add_3  as %copy_
      return  %loss  "out[0]"  user  float32[]
      guard   %lt  taken

`float32[4, 8]{1, 4}` has strides {1, 4}; without them it is contiguous. A Python number is a
`scalar`: its value is no part of the program.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import fx

from pantile.program.digest import digest_of
from pantile.program.program import WRITE, Program, tag_of
from pantile.program.spec import CHECKPOINT, Input, InputKind, NodeTag
from pantile.program.targets import name_of

KEYWORDS = {
    InputKind.PARAMETER: "param",
    InputKind.BUFFER: "buffer",
    InputKind.OPTIMIZER: "state",
    InputKind.GRADIENT: "grad",
    InputKind.HYPER: "hyper",
    InputKind.ARGUMENT: "arg",
    InputKind.SEEDS: "seeds",
    InputKind.CONSTANT: "lifted",
    InputKind.EDGE: "edge",
}
INLINE_ELEMENTS = 8
BARE = re.compile(r"[\w.:/\\@+<>\[\]-]+")

_NAME_WIDTH = 20
_CALL_WIDTH = 72
_INLINE_DTYPES = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.float16, torch.bfloat16, torch.float32, torch.float64}
)


@dataclass(frozen=True)
class Line:
    """One line of the text form, and the node it shows."""

    text: str
    node: fx.Node | None = None

    def indented(self) -> Line:
        """The same line, one level further in."""
        return Line(f"  {self.text}", self.node)


@dataclass(frozen=True)
class Style:
    """What to print besides the nodes: their tags, and constants of how many elements."""

    tags: bool = True
    inline: int = INLINE_ELEMENTS


def print_program(program: Program, *, tags: bool = True) -> str:
    """The text form of a Program; `parse_program` reads it back.

    Without `tags` the text says what is computed, not which module and line asked for it.
    """
    return "".join(f"{line.text}\n" for line in render(program, Style(tags=tags)))


def render(program: Program, style: Style | None = None) -> list[Line]:
    """The lines of the text form, each with its node."""
    style = style or Style()
    described = dict(zip(program.placeholders, program.inputs, strict=False))
    placeholders = [_placeholder_cells(n, described.get(n)) for n in program.placeholders]
    outputs = [
        ["return", print_value(value), json.dumps(entry.name), entry.kind.value, str(entry.spec)]
        for value, entry in zip(_returned(program.graph), program.outputs, strict=False)
    ]
    guards = [["guard ", f"%{g.node}", "taken" if g.taken else "refused"] for g in program.guards]
    lines = [
        *_align(placeholders, program.placeholders),
        *_definitions(program.constants, program.subgraphs, style),
        *_body(program.graph, style),
        *_align(outputs, [_output_node(program.graph)] * len(outputs)),
        *_align(guards, [None] * len(guards)),
    ]
    return [Line(f"program {_print_word(program.name)}"), *(line.indented() for line in lines)]


def _render_module(name: str, module: fx.GraphModule, style: Style) -> Iterator[Line]:
    graph = module.graph
    named = {n.target: fetch(module, str(n.target)) for n in graph.nodes if n.op == "get_attr"}
    constants = {str(k): v for k, v in named.items() if isinstance(v, torch.Tensor)}
    subgraphs = {str(k): v for k, v in named.items() if isinstance(v, fx.GraphModule)}
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    inner = [
        *_align([_placeholder_cells(n, None) for n in placeholders], placeholders),
        *_definitions(constants, subgraphs, style),
        *_body(graph, style),
    ]
    output = _output_node(graph)
    if output is not None:
        inner.append(Line(f"return  {print_value(output.args[0])}", output))
    yield Line(f"graph   {json.dumps(name)}")
    yield from (line.indented() for line in inner)
    yield Line("end")


def fetch(module: torch.nn.Module, target: str) -> object:
    """What a `get_attr` node of that target reads; None if there is no such thing."""
    found: object = module
    for part in target.split("."):
        found = getattr(found, part, None)
    return found


def _definitions(
    constants: Mapping[str, torch.Tensor], subgraphs: Mapping[str, fx.GraphModule], style: Style
) -> Iterator[Line]:
    cells = [
        ["const ", json.dumps(name), describe(tensor), _content(tensor, style)]
        for name, tensor in constants.items()
    ]
    yield from _align(cells, [None] * len(cells))
    for name, module in subgraphs.items():
        yield from _render_module(name, module, style)


def _content(tensor: torch.Tensor, style: Style) -> str:
    inline = (
        tensor.numel() <= style.inline
        and tensor.dtype in _INLINE_DTYPES
        and tensor.is_contiguous()
        and not bool(tensor.isnan().any())  # the bits of a NaN are lost in print
    )
    return print_value(tensor.flatten().tolist()) if inline else digest_of(tensor)


def _placeholder_cells(node: fx.Node, entry: Input | None) -> list[str]:
    target = f"= {json.dumps(node.target)}" if node.target != node.name else ""
    value = describe_node(node)
    if entry is None:
        return ["input ", f"%{node.name}", "", value, target, ""]
    spec = str(entry.spec)
    arrow = "" if value == spec else f"-> {value}"
    name = json.dumps(entry.name)
    return [f"{KEYWORDS[entry.kind]:6}", f"%{node.name}", name, spec, target, arrow]


def _body(graph: fx.Graph, style: Style) -> list[Line]:
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    calls = [node for node in nodes if not is_plain_write(node)]
    name_width = min(_NAME_WIDTH, _usual(len(n.name) for n in calls))
    texts = {node: f"%{node.name:{name_width}} = {_print_call(node)}" for node in calls}
    call_width = min(_CALL_WIDTH, _usual(map(len, texts.values())))
    return [Line(_print_node(n, texts.get(n), call_width, style), n) for n in nodes]


def _usual(lengths: Iterable[int]) -> int:
    """The length that nine in ten do not exceed: one long line must not push all others away."""
    ordered = sorted(lengths)
    return ordered[(len(ordered) - 1) * 9 // 10] if ordered else 0


def _print_node(node: fx.Node, call: str | None, width: int, style: Style) -> str:
    if call is None:
        target, value = node.args[0], node.args[1]
        text = f"write   {print_value(target)} <- {print_value(value)}  as %{node.name}"
    elif node.op == "get_attr" and "val" not in node.meta:
        text = call
    else:
        text = f"{call:{width}}  -> {describe_node(node)}"
    tag = tag_of(node)
    return text if not style.tags or tag == NodeTag() else f"{text}  # {_print_tag(tag)}"


def is_plain_write(node: fx.Node) -> bool:
    """True for a `copy_` onto a placeholder that needs no more than its two names."""
    if node.target is not WRITE or len(node.args) != 2 or node.kwargs:
        return False
    target = node.args[0]
    if not isinstance(target, fx.Node) or target.op != "placeholder":
        return False
    return describe_node(target) == describe_node(node)


def _print_call(node: fx.Node) -> str:
    if node.op == "get_attr":
        return f"get {json.dumps(node.target)}"
    target = name_of(node.target) if node.op == "call_function" else None
    positional = (print_value(arg) for arg in node.args)
    named = (f"{key}={print_value(arg)}" for key, arg in node.kwargs.items())
    return f"{target or _opaque(node.target)}({', '.join(chain(positional, named))})"


def _print_tag(tag: NodeTag) -> str:
    words = [_print_word(word) for word in (tag.module, tag.source)]
    while words and words[-1] == '""':
        words.pop()
    where = [_print_word(tag.phase), f"stage={tag.stage}"]
    if tag.block:
        block = f"block={tag.block}"
        where.append(block if BARE.fullmatch(tag.block) else json.dumps(block))
    if tag.checkpoint:
        where.append(CHECKPOINT)
    return " ".join([*where, *words])


def _print_word(word: str) -> str:
    return word if BARE.fullmatch(word) else json.dumps(word)


def _returned(graph: fx.Graph) -> Sequence[Any]:
    output = _output_node(graph)
    values = output.args[0] if output is not None and output.args else ()
    return values if isinstance(values, (list, tuple)) else (values,)


def _output_node(graph: fx.Graph) -> fx.Node | None:
    return next((node for node in reversed(graph.nodes) if node.op == "output"), None)


def _align(rows: Sequence[Sequence[str]], nodes: Iterable[fx.Node | None]) -> list[Line]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True) if width)
        for row in rows
    )
    return [Line(text.rstrip(), node) for text, node in zip(padded, nodes, strict=True)]


def describe_node(node: fx.Node) -> str:
    """Shape and dtype of a node's value; `unknown` if it carries none."""
    return describe(node.meta["val"]) if "val" in node.meta else "unknown"


def describe(value: object) -> str:
    """Shape and dtype of a value: `float32[2, 3]`, `scalar`, or several in brackets."""
    match value:
        case None:
            return "none"
        case torch.Tensor():
            dtype = str(value.dtype).removeprefix("torch.")
            shape = ", ".join(map(str, value.shape))
            return f"{dtype}[{shape}]{_print_strides(value)}"
        case tuple():
            return print_tuple([describe(entry) for entry in value])
        case list():
            return f"[{', '.join(describe(entry) for entry in value)}]"
        case bool() | int() | float() | torch.SymInt() | torch.SymFloat() | torch.SymBool():
            return "scalar"
    return _opaque(value)


def _print_strides(tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return ""
    return "{" + ", ".join(map(str, tensor.stride())) + "}"


def print_value(value: object) -> str:
    """An argument of a node, as it is written in the text form."""
    match value:
        case fx.Node():
            return f"%{value.name}"
        case tuple():
            return print_tuple([print_value(entry) for entry in value])
        case list():
            return f"[{', '.join(map(print_value, value))}]"
        case dict():
            pairs = (f"{print_value(k)}: {print_value(v)}" for k, v in value.items())
            return "{" + ", ".join(pairs) + "}"
        case slice():
            return f"slice({', '.join(map(print_value, (value.start, value.stop, value.step)))})"
    plain = _PLAIN.get(type(value))
    return plain(value) if plain else name_of(value) or _opaque(value)


def print_tuple(entries: list[str]) -> str:
    """A tuple of texts, with the comma that tells one entry from brackets."""
    return f"({entries[0]},)" if len(entries) == 1 else f"({', '.join(entries)})"


def _opaque(value: object) -> str:
    return f"<{value}>"


def _print_float(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"{'-' if value < 0 else ''}{abs(value)}"


_PLAIN: dict[type, Callable[[Any], str]] = {
    type(None): repr,
    bool: repr,
    int: repr,
    float: _print_float,
    complex: lambda value: f"complex({_print_float(value.real)}, {_print_float(value.imag)})",
    str: json.dumps,
    type(Ellipsis): lambda _: "...",
    torch.dtype: str,
    torch.layout: str,
    torch.memory_format: str,
    torch.device: lambda device: f"device({json.dumps(str(device))})",
}
