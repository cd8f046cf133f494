"""Names of the tensors of a compiled step, in PopTorch's manner (spec 2.18).

input, input/1          arguments
fc.weight               parameters and buffers, as the module names them
layer/Addmm:0           what an op computes, after the module it belongs to
loss                    the output that is trained
Gradient___fc.weight    its gradient; UpdatedVar___fc.weight is its value after the update
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx

from pantile.program.program import WRITE, Program, tag_of
from pantile.program.spec import InputKind, OutputKind


def tensor_names(program: Program, *, loss: int | None) -> list[str]:
    """All names, each once, in the order of the program; `loss` is the output that is trained."""
    names: dict[str, None] = {}
    for name in (*_all_names(program), *([] if loss is None else ["loss"])):
        names[_unused(name, names)] = None
    return list(names)


def _all_names(program: Program) -> Iterator[str]:
    for entry in program.inputs:
        yield "input" if entry.kind is InputKind.ARGUMENT else entry.name
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is not WRITE:
            yield _node_name(node)
    for output in program.outputs:
        if output.kind is OutputKind.GRADIENT:
            yield f"Gradient___{output.name}"
            yield f"UpdatedVar___{output.name}"


def _node_name(node: fx.Node) -> str:
    module = tag_of(node).module.replace(".", "/")
    op = getattr(node.target, "_overloadpacket", node.target)
    name = str(getattr(op, "__name__", op)).title().replace("_", "")
    return f"{module}/{name}:0" if module else f"{name}:0"


def _unused(name: str, names: dict[str, None]) -> str:
    if name not in names:
        return name
    number = 1
    while f"{name}/{number}" in names:
        number += 1
    return f"{name}/{number}"
