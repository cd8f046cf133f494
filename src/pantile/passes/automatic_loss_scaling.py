"""Let an update adapt the loss scale to the gradients it sees.

    grad  %g  float16                 grad  %g
    hyper %scale              ->      hyper %scale
    %new = sub(%w, ...)               %large = share of |%g| above the edge
    write %w <- %new                  %ok    = is all of %g finite?
                                      %new   = sub(%w, ...)
                                      write %w     <- where(%ok, %new, %w)
                                      write %scale <- half of it if %large or not %ok, else twice

The edge is an eighth of the largest float16 number, so the scale falls before anything overflows.
If something does, that update is left out: the weights and the optimizer's state stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import fx

from pantile.passes.node_writer import NodeWriter
from pantile.program.program import WRITE, Program, copy_graph
from pantile.program.spec import Input, InputKind, OutputKind, TensorSpec

aten = torch.ops.aten

SCALE, COUNT = "loss_scaling", "loss_scaling.count"
"""The inputs that are written: the scale, and the number of updates until now."""

LARGEST_SCALE = 2.0**15
"""The largest power of two that float16 holds."""

_SMALLEST_SCALE = 2.0**-14
_LARGEST_HALF = 65504.0


@dataclass(frozen=True)
class ScalingRule:
    """When the scale changes."""

    edge: float = 0.125
    """Where a gradient is large, as a share of the largest float16 number."""

    share: float = 1e-7
    """How many of the gradients may be large."""

    period: int = 1
    """The scale changes at every so many updates."""


def automatic_loss_scaling(
    program: Program, rule: ScalingRule, watched: Collection[str], *, summed: int
) -> Program:
    """The update, adapting the scale by the `watched` gradients, sums of `summed` ones each."""
    if not watched:
        return program
    graph, _ = copy_graph(program.graph)
    return _Scaling(program, graph, rule).written(watched, summed)


class _Scaling:
    """The graph while it is changed."""

    def __init__(self, program: Program, graph: fx.Graph, rule: ScalingRule) -> None:
        self._program, self._graph, self._rule = program, graph, rule
        self._writer = NodeWriter(graph)
        self._call = self._writer.call
        nodes = [node for node in graph.nodes if node.op == "placeholder"]
        self._inputs = {(e.kind, e.name): n for n, e in zip(nodes, program.inputs, strict=True)}

    def written(self, watched: Collection[str], summed: int) -> Program:
        entries = list(self._program.inputs)
        if self._rule.period > 1:
            count = self._writer.placeholder(COUNT, (), torch.float32)
            self._inputs[InputKind.HYPER, COUNT] = count
            entries.append(Input(COUNT, InputKind.HYPER, TensorSpec((), torch.float32)))
        output = next(reversed(self._graph.nodes))
        end = next(node for node in self._graph.nodes if node.target is WRITE or node is output)
        gradients = [self._inputs[InputKind.GRADIENT, name] for name in watched]
        with self._writer.replacing(end):
            finite, large = self._judged(gradients, summed)
            self._protect(output, finite)
            new = self._new_values(finite, large)
        with self._graph.inserting_before(output):
            for target, value in new:
                write = self._graph.call_function(WRITE, (target, value))
                write.meta = {**target.meta}
        self._graph.lint()
        return self._program.replace(graph=self._graph, inputs=tuple(entries))

    def _judged(self, gradients: list[fx.Node], summed: int) -> tuple[fx.Node, fx.Node]:
        """Are all gradients finite, and are too many of them large?"""
        call = self._call
        elements = sum(node.meta["val"].numel() for node in gradients)
        found: list[tuple[fx.Node, fx.Node]] = []
        for gradient in gradients:
            size = call(
                aten.abs.default, call(aten._to_copy.default, gradient, dtype=torch.float32)
            )
            # inf * 0 and nan * 0 are NaN, and so is a sum with one of them.
            rest = call(aten.sum.default, call(aten.mul.Scalar, size, 0.0))
            edge = self._rule.edge * _LARGEST_HALF * summed
            above = call(
                aten._to_copy.default, call(aten.gt.Scalar, size, edge), dtype=torch.float32
            )
            found.append((rest, call(aten.sum.default, above)))
        rest, above = found[0]
        for other, more in found[1:]:
            rest, above = call(aten.add.Tensor, rest, other), call(aten.add.Tensor, above, more)
        finite = call(aten.eq.Scalar, rest, 0.0)
        return finite, call(aten.gt.Scalar, above, self._rule.share * elements)

    def _protect(self, output: fx.Node, finite: fx.Node) -> None:
        """Keep weights and state when gradients are not finite; state not yet made begins at 0."""
        call = self._call
        for node in self._graph.nodes:
            if node.target is WRITE:
                old, new = node.all_input_nodes[0], node.args[1]
                node.args = (old, call(aten.where.self, finite, new, old))
        returned = list(output.args[0])  # type: ignore[arg-type]
        for place, entry in enumerate(self._program.outputs):
            if entry.kind is OutputKind.OPTIMIZER:
                zero = call(aten.zeros_like.default, returned[place])
                returned[place] = call(aten.where.self, finite, returned[place], zero)
        output.args = (tuple(returned),)

    def _new_values(self, finite: fx.Node, large: fx.Node) -> list[tuple[fx.Node, fx.Node]]:
        call = self._call
        scale = self._inputs[InputKind.HYPER, SCALE]
        down = call(aten.logical_or.default, large, call(aten.logical_not.default, finite))
        new = call(
            aten.where.self,
            down,
            call(aten.mul.Scalar, scale, 0.5),
            call(aten.mul.Scalar, scale, 2.0),
        )
        new = call(aten.clamp.default, new, _SMALLEST_SCALE, LARGEST_SCALE)
        count = self._inputs.get((InputKind.HYPER, COUNT))
        if count is None:
            return [(scale, new)]
        due = call(aten.eq.Scalar, call(aten.remainder.Scalar, count, self._rule.period), 0.0)
        new = call(aten.where.self, due, new, scale)
        return [(scale, new), (count, call(aten.add.Scalar, count, 1.0))]
