"""Add gradients to accumulators instead of returning them.

    param %w                           param %w
    %g = mm(...)                       grad  %grad_w
    return %loss, %g "w" gradient ->   %g     = mm(...)
                                       %sum   = add(%grad_w, %g)
                                       write %grad_w <- %sum
                                       return %loss

The executor clears the accumulators before the first micro-batch of a device iteration; after the
last one they hold the sum. With a running mean, `sum = grad_w * old + g * new`, where `old` and
`new` are two more inputs: (k - 1) / k and 1 / k at the k-th micro-batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import fx

from pantile.program.program import WRITE, Program, copy_graph, tag_of
from pantile.program.spec import Input, InputKind, Output, OutputKind, TensorSpec

aten = torch.ops.aten

OLD, NEW = "accumulate.old", "accumulate.new"
"""The weights of a running mean, among the hyper-parameters."""


def accumulate_gradients(
    program: Program, dtype: torch.dtype | None = None, *, running: bool = False
) -> Program:
    """One accumulator per returned gradient: an input that the program adds to and writes back.

    Floating-point accumulators are of `dtype` if one is given.
    """
    if not program.outputs_of(OutputKind.GRADIENT):
        return program
    graph, _ = copy_graph(program.graph)
    output = next(reversed(graph.nodes))
    returned = list(zip(output.args[0], program.outputs, strict=True))
    gradients = [(value, entry) for value, entry in returned if _is_gradient(entry)]
    others = [(value, entry) for value, entry in returned if not _is_gradient(entry)]

    last_input = _last_placeholder(graph)
    first_write = next(node for node in graph.nodes if node.target is WRITE or node is output)
    added: list[Input] = []
    weights: list[fx.Node] = []
    if running:
        for name in (OLD, NEW):
            value = gradients[0][0].meta["val"].new_empty((), dtype=torch.float64)
            last_input = _add_input(graph, last_input, name, value)
            weights.append(last_input)
            added.append(Input(name, InputKind.HYPER, TensorSpec.of(value)))
    for gradient, entry in gradients:
        value = _accumulator_value(gradient.meta["val"], dtype)
        accumulator = last_input = _add_input(graph, last_input, f"grad_{entry.name}", value)
        added.append(Input(entry.name, InputKind.GRADIENT, TensorSpec.of(value)))
        _add_to(graph, accumulator, gradient, weights, (first_write, output))
    output.args = (tuple(value for value, _ in others),)
    graph.lint()
    return program.replace(
        graph=graph,
        inputs=(*program.inputs, *added),
        outputs=tuple(entry for _, entry in others),
    )


def _accumulator_value(gradient: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    kind = dtype if dtype is not None and gradient.is_floating_point() else gradient.dtype
    return gradient.new_empty(gradient.shape, dtype=kind)


def _is_gradient(entry: Output) -> bool:
    return entry.kind is OutputKind.GRADIENT


def _last_placeholder(graph: fx.Graph) -> fx.Node | None:
    return next((node for node in reversed(graph.nodes) if node.op == "placeholder"), None)


def _add_input(graph: fx.Graph, after: fx.Node | None, name: str, value: torch.Tensor) -> fx.Node:
    place = graph.inserting_after(after) if after else graph.inserting_before()
    with place:
        added = graph.placeholder(name)
    # The target becomes an argument of generated Python; only the node's own name is sure to be
    # a name, and not yet taken: parameters are called `conv2d_0/w_0`, or `a.b` beside `a_b`.
    added.target = added.name
    added.meta["val"] = value
    return added


def _add_to(
    graph: fx.Graph,
    accumulator: fx.Node,
    gradient: fx.Node,
    weights: list[fx.Node],
    places: tuple[fx.Node, fx.Node],
) -> None:
    """Compute the new sum before the writes, and write it before the output."""
    tag = replace(tag_of(gradient), phase="accumulate")
    held, body_end, output = accumulator.meta["val"], *places

    def call(target: Any, name: str, *args: Any, **kwargs: Any) -> fx.Node:
        node = graph.create_node("call_function", target, args, kwargs, name=name)
        node.meta = {"tag": tag, "val": held}
        return node

    with graph.inserting_before(body_end):
        old, new = accumulator, gradient
        if gradient.meta["val"].dtype is not held.dtype:
            new = call(aten._to_copy.default, "to_accumulator", gradient, dtype=held.dtype)
        if weights:
            old = call(aten.mul.Tensor, "mul", old, weights[0])
            new = call(aten.mul.Tensor, "mul", new, weights[1])
        total = call(aten.add.Tensor, "add", old, new)
    with graph.inserting_before(output):
        call(WRITE, "copy_", accumulator, total)
