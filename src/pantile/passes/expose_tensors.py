"""Return tensors from the middle of a Program.

    %h = relu(%x)                    %h = relu(%x)
    %y = mul(%h, %h)          ->     %y = mul(%h, %h)
    return %y "out"                  %c = clone(%h)
                                     return %y "out", %c "hidden" anchor

What is returned is a copy: the tensor may be a view of state that is written at the end.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from pantile.passes.node_writer import NodeWriter
from pantile.program.program import WRITE, Program, copy_graph
from pantile.program.spec import Output, OutputKind, TensorSpec


def expose_tensors(program: Program, tensors: Mapping[str, fx.Node]) -> Program:
    """The same program that returns these tensors too, by the names they are given here."""
    if not tensors:
        return program
    graph, moved = copy_graph(program.graph)
    output = next(reversed(graph.nodes))
    end = next(node for node in graph.nodes if node.target is WRITE or node is output)
    writer = NodeWriter(graph)
    added = []
    for node in tensors.values():
        with writer.replacing(end), writer.standing_for(moved[node]):
            added.append(writer.call(torch.ops.aten.clone.default, moved[node]))
    output.args = ((*output.args[0], *added),)
    graph.lint()
    entries = [
        Output(name, OutputKind.ANCHOR, TensorSpec.of(node.meta["val"]))
        for name, node in zip(tensors, added, strict=True)
    ]
    return program.replace(graph=graph, outputs=(*program.outputs, *entries))
