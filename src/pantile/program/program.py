"""The Program: one entry point of a captured step, as an immutable ATen graph.

    placeholders   one per `Input`: parameters, buffers, optimizer state, hyper-parameters, args
    body           functional ATen ops (and `operator.*` on Python scalars); nothing is written
    epilogue       `aten.copy_(placeholder, value)`: state and arguments written back in place
    output         one per `Output`

A Program is never edited: a pass copies the graph and builds a new one with `Program.replace`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from pantile.program.nodes import copied_node
from pantile.program.spec import Guard, Input, InputKind, NodeTag, Output, OutputKind

WRITE = torch.ops.aten.copy_.default


@dataclass(frozen=True, eq=False)
class Program:
    """One entry point: `gradients`, `update`, `fused` or `inference`."""

    name: str
    graph: fx.Graph
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    subgraphs: Mapping[str, fx.GraphModule] = field(default_factory=dict)
    guards: tuple[Guard, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "constants", MappingProxyType(dict(self.constants)))
        object.__setattr__(self, "subgraphs", MappingProxyType(dict(self.subgraphs)))

    @property
    def placeholders(self) -> list[fx.Node]:
        """The graph's placeholders, in the order of `inputs`."""
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    @property
    def returned(self) -> list[Any]:
        """The values the graph returns, in the order of `outputs`."""
        output = next(node for node in reversed(self.graph.nodes) if node.op == "output")
        return list(output.args[0])

    @property
    def writes(self) -> list[tuple[Input, fx.Node]]:
        """The inputs written back at the end, with the values they get."""
        by_node = dict(zip(self.placeholders, self.inputs, strict=True))
        return [
            (by_node[node.args[0]], node.args[1])
            for node in self.graph.nodes
            if node.target is WRITE
        ]

    def inputs_of(self, kind: InputKind) -> list[Input]:
        """The inputs of one kind, in order."""
        return [entry for entry in self.inputs if entry.kind is kind]

    def outputs_of(self, kind: OutputKind) -> list[Output]:
        """The outputs of one kind, in order."""
        return [entry for entry in self.outputs if entry.kind is kind]

    def replace(self, **changes: Any) -> Program:
        """A Program that differs in the given fields."""
        return replace(self, **changes)

    def edit(self, change: Callable[[fx.Graph], None], **changes: Any) -> Program:
        """A Program whose graph is a changed copy of this one's."""
        graph, _ = copy_graph(self.graph)
        change(graph)
        graph.lint()
        return replace(self, graph=graph, **changes)

    def outline(self) -> Program:
        """What a caller sees: the same inputs, writes and outputs, with nothing computed."""
        graph = fx.Graph()
        given: dict[Input, fx.Node] = {}
        for node, entry in zip(self.placeholders, self.inputs, strict=True):
            given[entry] = graph.placeholder(str(node.target))
            given[entry].meta["val"] = node.meta.get("val")
        for entry, _ in self.writes:
            graph.call_function(WRITE, (given[entry], given[entry]))
        graph.output(())
        return replace(self, graph=graph, subgraphs={}, guards=())

    def __str__(self) -> str:
        from pantile.program.text import print_program

        return print_program(self)


def copy_graph(graph: fx.Graph) -> tuple[fx.Graph, dict[fx.Node, fx.Node]]:
    """A copy of a graph, and which node became which."""
    new = fx.Graph()
    moved: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "output":
            new.output(fx.map_arg(node.args[0], moved.__getitem__))
        else:
            moved[node] = copied_node(new, node, moved.__getitem__)
    return new, moved


def tag_of(node: fx.Node) -> NodeTag:
    """Where a node comes from."""
    tag = node.meta.get("tag")
    return tag if isinstance(tag, NodeTag) else NodeTag()
