"""Decomposing a program node by node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

import poptorch
from pantile.lowering.kernels.decompose import decomposed
from pantile.lowering.kernels.decompositions import decompositions
from pantile.program.program import Program
from pantile.program.spec import InputKind

aten = torch.ops.aten


def _program(model: nn.Module, x: torch.Tensor) -> Program:
    executor = poptorch.inferenceModel(model, poptorch.Options().engine("reference"))
    executor(x)
    return executor._compiled[0].program


def _run(graph: fx.Graph, program: Program, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    state = model.state_dict()
    values = [x if e.kind is InputKind.ARGUMENT else state[e.name] for e in program.inputs]
    (result,) = fx.Interpreter(fx.GraphModule({}, graph)).run(*values)
    return result


def _targets(graph: fx.Graph) -> list[Any]:
    return [node.target for node in graph.nodes if node.op == "call_function"]


def test_what_is_written_computes_the_same() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 3)).eval()
    x = torch.randn(5, 8)
    program = _program(model, x)

    graph = decomposed(program, decompositions())

    assert aten.native_layer_norm.default in _targets(program.graph)
    assert aten.native_layer_norm.default not in _targets(graph)
    torch.testing.assert_close(_run(graph, program, model, x), model(x))


def test_equal_calls_are_run_through_their_rule_once() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(3))).eval()
    x = torch.randn(2, 4)
    program = _program(model, x)
    calls: list[torch.Size] = []

    def gelu(value: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
        calls.append(value.shape)
        return value * 2

    table: dict[Any, Callable[..., Any]] = {aten.gelu.default: gelu}
    graph = decomposed(program, table)

    assert calls == [x.shape]
    assert _targets(graph).count(aten.mul.Tensor) == 3


def test_a_rule_that_does_not_apply_leaves_the_node_as_it_is() -> None:
    model = nn.GELU()
    program = _program(model, torch.randn(2, 4))

    graph = decomposed(program, {aten.gelu.default: lambda *_, **__: NotImplemented})

    assert aten.gelu.default in _targets(graph)


def test_results_keep_the_strides_of_the_operator() -> None:
    model = nn.GELU()
    x = torch.randn(4, 2).t()
    program = _program(model, x)

    def gelu(value: torch.Tensor, **_: Any) -> torch.Tensor:
        return (value * 2).contiguous()

    graph = decomposed(program, {aten.gelu.default: gelu})

    (result,) = next(node for node in graph.nodes if node.op == "output").args[0]
    known = program.returned[0].meta["val"]
    assert result.meta["val"].stride() == known.stride()


def test_a_rule_that_writes_is_left_to_a_trace_of_the_whole_program() -> None:
    model = nn.GELU()
    x = torch.randn(2, 4)
    program = _program(model, x)

    def gelu(value: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.zeros_like(value).add_(value)

    graph = decomposed(program, {aten.gelu.default: gelu})

    torch.testing.assert_close(_run(graph, program, model, x), x)
