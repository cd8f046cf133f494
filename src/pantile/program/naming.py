"""Names of the tensors of a Program, in PopTorch's manner (spec 2.18).

input, input/1          arguments
fc.weight               parameters and buffers, as the module names them
layer/0/Conv:0          result 0 of an op, after the scopes it was recorded in
layer/0/Conv:0/1        … of the second op of that name
Slice:0, Slice:0/1      the parts of a split, which are ops of their own
Gradient___fc.weight    the gradient of a parameter, of one micro-batch
"""

from __future__ import annotations

import operator
from functools import cached_property

import torch
from torch import fx

from pantile.program.op_types import op_type
from pantile.program.program import WRITE, Program, tag_of
from pantile.program.spec import InputKind, OutputKind

GRADIENT = "Gradient___"


class TensorNames:
    """Which tensor of a Program has which name."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._taken: set[str] = set()
        self._names: dict[fx.Node, str] = {}
        self._ops: dict[fx.Node, str] = {}
        for node, entry in zip(program.placeholders, program.inputs, strict=True):
            own = "input" if entry.kind is InputKind.ARGUMENT else entry.name
            self._names[node] = self._unused(own)
        for node in program.graph.nodes:
            if node.op == "get_attr":
                self._names[node] = self._unused(str(node.target))
            elif node.op == "call_function" and node.target is not WRITE:
                self._name_op(node)

    def _name_op(self, node: fx.Node) -> None:
        if node.target is operator.getitem and node.args[0] in self._ops:
            source, index = node.args
            assert isinstance(source, fx.Node)
            own = f"{self._ops[source]}:{index}"
            if op_type(source) == "Split":
                own = f"{self._ops[source].removesuffix('Split')}Slice:0"
            self._names[node] = self._unused(own)
            return
        scope, kind = tag_of(node).module, op_type(node)
        self._ops[node] = f"{scope}/{kind}" if scope else kind
        if isinstance(node.meta.get("val"), torch.Tensor):
            self._names[node] = self._unused(f"{self._ops[node]}:0")

    def _unused(self, name: str) -> str:
        found, number = name, 0
        while found in self._taken:
            number += 1
            found = f"{name}/{number}"
        self._taken.add(found)
        return found

    def of(self, node: fx.Node) -> str:
        """The name of a tensor."""
        return self._names.get(node, node.name)

    def op(self, node: fx.Node) -> str:
        """The name of an op: its scopes and its type."""
        return self._ops.get(node, node.name)

    @property
    def all(self) -> dict[str, fx.Node]:
        """Every tensor by its name, in the order of the program; then gradients by parameter."""
        found = {name: node for node, name in self._names.items()}
        return {**found, **self.gradients}

    @cached_property
    def gradients(self) -> dict[str, fx.Node]:
        """The gradients that the program returns."""
        program = self._program
        pairs = zip(program.outputs, program.returned, strict=True)
        return {f"{GRADIENT}{o.name}": v for o, v in pairs if o.kind is OutputKind.GRADIENT}
