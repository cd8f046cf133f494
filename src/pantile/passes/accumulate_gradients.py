"""Add gradients to accumulators instead of returning them.

    param %w                           param %w
    %g = mm(...)                       grad  %grad_w
    return %loss, %g "w" gradient ->   %g     = mm(...)
                                       %sum   = add(%grad_w, %g)
                                       write %grad_w <- %sum
                                       return %loss

The executor clears the accumulators before the first micro-batch of a device iteration; after the
last one they hold the sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from pantile.program.program import WRITE, Program, copy_graph, tag_of
from pantile.program.spec import Input, InputKind, Output, OutputKind


def accumulate_gradients(program: Program) -> Program:
    """One accumulator per returned gradient: an input that the program adds to and writes back."""
    if not program.outputs_of(OutputKind.GRADIENT):
        return program
    graph, _ = copy_graph(program.graph)
    output = next(reversed(graph.nodes))
    returned = list(zip(output.args[0], program.outputs, strict=True))
    gradients = [(value, entry) for value, entry in returned if _is_gradient(entry)]
    others = [(value, entry) for value, entry in returned if not _is_gradient(entry)]

    last_input = _last_placeholder(graph)
    first_write = next(node for node in graph.nodes if node.target is WRITE or node is output)
    for gradient, entry in gradients:
        accumulator = _add_input(graph, last_input, gradient, entry)
        last_input = accumulator
        _add_to(graph, accumulator, gradient, first_write, output)
    output.args = (tuple(value for value, _ in others),)
    graph.lint()
    accumulators = (Input(e.name, InputKind.GRADIENT, e.spec) for _, e in gradients)
    return program.replace(
        graph=graph,
        inputs=(*program.inputs, *accumulators),
        outputs=tuple(entry for _, entry in others),
    )


def _is_gradient(entry: Output) -> bool:
    return entry.kind is OutputKind.GRADIENT


def _last_placeholder(graph: fx.Graph) -> fx.Node | None:
    return next((node for node in reversed(graph.nodes) if node.op == "placeholder"), None)


def _add_input(graph: fx.Graph, after: fx.Node | None, gradient: fx.Node, entry: Output) -> fx.Node:
    place = graph.inserting_after(after) if after else graph.inserting_before()
    with place:
        accumulator = graph.placeholder(f"grad_{entry.name.replace('.', '_')}")
    value = gradient.meta["val"]
    accumulator.meta["val"] = value.new_empty(value.shape)
    return accumulator


def _add_to(
    graph: fx.Graph, accumulator: fx.Node, gradient: fx.Node, body_end: fx.Node, output: fx.Node
) -> None:
    tag = replace(tag_of(gradient), phase="accumulate")
    with graph.inserting_before(body_end):
        args = (accumulator, gradient)
        total = graph.create_node("call_function", torch.ops.aten.add.Tensor, args, name="add")
    with graph.inserting_before(output):
        write = graph.create_node("call_function", WRITE, (accumulator, total), name="copy_")
    values: dict[str, Any] = {"tag": tag}
    total.meta = {**values, "val": accumulator.meta["val"] + gradient.meta["val"]}
    write.meta = {**values, "val": accumulator.meta["val"]}
