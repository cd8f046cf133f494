"""Build small Programs by hand, and run them.

build = Builder("gradients")
x = build.input("x", (2, 3))
y = build.call(aten.relu.default, x)
program = build.finish(build.returns("out", y))
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pantile.program.program import WRITE, Program
from pantile.program.spec import (
    Guard,
    Input,
    InputKind,
    NodeTag,
    Output,
    OutputKind,
    ScalarSpec,
    Spec,
    TensorSpec,
)

aten = torch.ops.aten


class Builder:
    """A Program that grows node by node; each node's value is computed on fake tensors."""

    def __init__(self, name: str = "inference") -> None:
        self.name = name
        self.graph = fx.Graph()
        self.mode = FakeTensorMode()
        self.inputs: list[Input] = []
        self.outputs: list[Output] = []
        self.returned: list[Any] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.subgraphs: dict[str, fx.GraphModule] = {}
        self.guards: list[Guard] = []

    def input(
        self,
        name: str,
        shape: tuple[int, ...],
        kind: InputKind = InputKind.ARGUMENT,
        dtype: torch.dtype = torch.float32,
    ) -> fx.Node:
        """A tensor input."""
        with self.mode:
            value = torch.empty(shape, dtype=dtype)
        return self._placeholder(name, kind, TensorSpec(shape, dtype), value)

    def hyper(self, name: str, value: float = 0.5) -> fx.Node:
        """A Python number as input."""
        return self._placeholder(name, InputKind.HYPER, ScalarSpec(), value)

    def _placeholder(self, name: str, kind: InputKind, spec: Spec, value: Any) -> fx.Node:
        node = self.graph.placeholder(name.replace(".", "_"))
        node.meta["val"] = value
        self.inputs.append(Input(name, kind, spec))
        return node

    def constant(self, name: str, value: torch.Tensor) -> fx.Node:
        """A constant and a node that reads it."""
        self.constants[name] = value
        node = self.graph.get_attr(name)
        node.meta["val"] = self.mode.from_tensor(value)
        return node

    def subgraph(self, name: str, module: fx.GraphModule) -> fx.Node:
        """A subgraph and a node that names it."""
        self.subgraphs[name] = module
        return self.graph.get_attr(name)

    def call(self, target: Any, *args: Any, tag: NodeTag | None = None, **kwargs: Any) -> fx.Node:
        """A call; its value is what the target makes of the fake values."""
        name = target.__name__.partition(".")[0]
        node = self.graph.create_node("call_function", target, args, kwargs, name=name)
        values = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        with self.mode:
            node.meta["val"] = target(*values[0], **values[1])
        if tag is not None:
            node.meta["tag"] = tag
        return node

    def write(self, target: fx.Node, value: fx.Node) -> fx.Node:
        """Write a value back to an input."""
        node = self.graph.create_node("call_function", WRITE, (target, value), name="copy_")
        node.meta["val"] = target.meta["val"]
        return node

    def returns(self, name: str, value: Any, kind: OutputKind = OutputKind.USER) -> None:
        """One more output."""
        held = value.meta["val"] if isinstance(value, fx.Node) else value
        is_tensor = isinstance(held, torch.Tensor)
        self.outputs.append(Output(name, kind, TensorSpec.of(held) if is_tensor else ScalarSpec()))
        self.returned.append(value)

    def finish(self) -> Program:
        """The Program."""
        self.graph.output(tuple(self.returned))
        return Program(
            name=self.name,
            graph=self.graph,
            inputs=tuple(self.inputs),
            outputs=tuple(self.outputs),
            constants=self.constants,
            subgraphs=self.subgraphs,
            guards=tuple(self.guards),
        )


def traced(function: Callable[..., Any], *arguments: torch.Tensor) -> Program:
    """The Program of a function from tensors to one tensor, subgraphs and constants included."""
    module = make_fx(function, tracing_mode="fake")(*arguments)
    build = Builder()
    build.graph = module.graph
    for node in module.graph.nodes:
        if node.op == "placeholder":
            spec = TensorSpec.of(node.meta["val"])
            build.inputs.append(Input(node.name, InputKind.ARGUMENT, spec))
        elif node.op == "get_attr":
            value = getattr(module, node.target)
            table = build.subgraphs if isinstance(value, fx.GraphModule) else build.constants
            table[node.target] = value
        elif node.op == "output":
            build.returns("out", node.args[0])
            module.graph.erase_node(node)
    return build.finish()


def run(program: Program, *inputs: Any) -> list[Any]:
    """Execute a Program with torch's own interpreter; written inputs are written in place."""
    attributes: dict[str, Any] = {**program.constants, **program.subgraphs}
    module = fx.GraphModule(attributes, program.graph)
    return list(fx.Interpreter(module).run(*inputs))


def square_program(recipe: list[tuple[int, int, int]], returned: list[int]) -> Program:
    """A Program of 3x3 matrices and numbers: each triple picks an operation and what it reads."""
    build = Builder("gradients")
    matrices = [build.input(name, (3, 3)) for name in ("x", "layer.weight")]
    numbers = [build.hyper("lr")]
    state = build.input("state", (3, 3), InputKind.BUFFER)
    matrices.append(build.constant("c", torch.arange(9.0).reshape(3, 3)))
    for choice, first, second in recipe:
        left, right = matrices[first % len(matrices)], matrices[second % len(matrices)]
        if choice == 0:
            numbers.append(build.call(operator.mul, numbers[first % len(numbers)], 0.75))
        elif choice == 1:
            halves = build.call(aten.split.Tensor, left, 1)
            rows = [build.call(operator.getitem, halves, i) for i in range(2)]
            matrices.append(build.call(aten.cat.default, [*rows, rows[second % 2]], 0))
        else:
            made = _CALLS[choice % len(_CALLS)](build, left, right, numbers[second % len(numbers)])
            made.meta["tag"] = NodeTag("forward", first % 3, "net.fc 1", f"a b.py:{second}")
            matrices.append(made)
    build.guards.append(Guard(build.call(operator.lt, numbers[-1], 1.0).name, True))
    build.write(state, matrices[returned[0] % len(matrices)])
    for index in dict.fromkeys(number % len(matrices) for number in returned):
        if matrices[index] is not state:
            build.returns(f"out[{index}]", matrices[index])
    return build.finish()


_CALLS = (
    lambda build, a, b, n: build.call(aten.add.Tensor, a, b, alpha=2),
    lambda build, a, b, n: build.call(aten.mul.Tensor, a, n),
    lambda build, a, b, n: build.call(aten.mm.default, a, b),
    lambda build, a, b, n: build.call(aten.t.default, a),
    lambda build, a, b, n: build.call(aten.sin.default, b),
    lambda build, a, b, n: build.call(aten.rand.default, [3, 3], dtype=torch.float32),
    lambda build, a, b, n: build.call(aten.clamp.default, a, None, float("inf")),
    lambda build, a, b, n: build.call(
        aten.where.ScalarSelf, build.call(aten.gt.Tensor, a, b), 2, b
    ),
)
