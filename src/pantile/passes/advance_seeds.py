"""Let a program that draws random numbers make the seeds of its next run.

    seeds %seeds                       seeds %seeds
    %u = … (%seeds, index) …    ->     %u = … (%seeds, index) …
                                       %next = (%seeds + step) & mask
                                       write %seeds <- %next

The executor fills the seeds of a micro-batch anew each time. An update runs between them, several
times in a call: it counts by itself.
"""

from __future__ import annotations

import torch

from pantile.passes.node_writer import NodeWriter
from pantile.program.program import WRITE, Program, copy_graph
from pantile.program.spec import InputKind

aten = torch.ops.aten

_STEP = 0x1E3779B97F4A7C15
"""An odd number with no pattern in its bits; a sum of two below the mask does not overflow."""

MASK = (1 << 62) - 1
"""Seeds are below 2**62."""


def advance_seeds(program: Program) -> Program:
    """The same program, writing the seeds of its next run."""
    entries = zip(program.placeholders, program.inputs, strict=True)
    seeds = [node.name for node, entry in entries if entry.kind is InputKind.SEEDS]
    if not seeds:
        return program
    graph, _ = copy_graph(program.graph)
    output = next(reversed(graph.nodes))
    end = next(node for node in graph.nodes if node.target is WRITE or node is output)
    writer = NodeWriter(graph)
    for node in [node for node in graph.nodes if node.name in seeds]:
        with graph.inserting_before(end):
            later = writer.call(aten.add.Scalar, node, _STEP)
            later = writer.call(aten.bitwise_and.Scalar, later, MASK)
        with graph.inserting_before(output):
            graph.call_function(WRITE, (node, later)).meta = {**node.meta}
    graph.lint()
    return program.replace(graph=graph)
