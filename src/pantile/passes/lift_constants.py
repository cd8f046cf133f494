"""Turn constants into inputs, so that compiled code holds no data.

    const "c" float32[2]                  lifted %c "c" float32[2]
    %c = get "c"                   ->     %y = mul(%x, %c)
    %y = mul(%x, %c)

Code that holds none can be kept and shared whatever the constants are, and a large table is in
memory once. Constants inside subgraphs stay where they are.
"""

from __future__ import annotations

import torch
from torch import fx

from pantile.passes.node_writer import NodeWriter
from pantile.program.nodes import erase
from pantile.program.program import Program, copy_graph
from pantile.program.spec import Input, InputKind, TensorSpec


def lift_constants(program: Program) -> tuple[Program, tuple[torch.Tensor, ...]]:
    """The program with its constants as last inputs, and the tensors to give for them, in order."""
    if not program.constants:
        return program, ()
    graph, _ = copy_graph(program.graph)
    writer = NodeWriter(graph)
    lifted: dict[str, fx.Node] = {}
    for node in graph.find_nodes(op="get_attr"):
        name = str(node.target)
        if name not in program.constants:
            continue
        if name not in lifted:
            lifted[name] = _add_input(writer, node, name)
        node.replace_all_uses_with(lifted[name])
        erase(node)
    graph.lint()
    tensors = {name: program.constants[name] for name in lifted}
    entries = (Input(n, InputKind.CONSTANT, TensorSpec.of(t)) for n, t in tensors.items())
    inputs = (*program.inputs, *entries)
    return program.replace(graph=graph, inputs=inputs, constants={}), tuple(tensors.values())


def _add_input(writer: NodeWriter, node: fx.Node, name: str) -> fx.Node:
    value = node.meta["val"]
    added = writer.placeholder(name, tuple(value.shape), value.dtype)
    added.meta["val"] = value  # it also knows the strides
    return added
