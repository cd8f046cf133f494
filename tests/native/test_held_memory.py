"""What an executor still holds once its code is loaded."""

from __future__ import annotations

import gc
from typing import Any

import torch
from tests.native.runs import Net, assert_close, batch, options, runs_natively, seeded
from torch import fx

import poptorch


def living(*types: type) -> list[Any]:
    gc.collect()
    return [o for o in gc.get_objects() if issubclass(type(o), types)]


def trained(optimizer: type[torch.optim.Optimizer]) -> poptorch.PoplarExecutor:
    model = seeded(Net)
    executor = poptorch.trainingModel(model, options(), optimizer(model.parameters(), lr=1e-3))
    for _ in range(3):
        executor(*batch())
    assert runs_natively(executor)
    return executor


def test_recorded_graphs_and_those_of_native_code_are_dropped() -> None:
    before = {id(o) for o in living(fx.Graph, fx.GraphModule)}

    executor = trained(torch.optim.AdamW)

    modules = [o for o in living(fx.GraphModule) if id(o) not in before]
    sizes = {len(graph.nodes) for graph in living(fx.Graph) if id(graph) not in before}
    ((compiled, update),) = executor._native._steps
    kept = {len(compiled.program.graph.nodes), len(update.program.graph.nodes)}
    outline = len(next(iter(executor._native._steps.values())).programs.body.program.graph.nodes)
    assert not modules
    assert sizes <= {*kept, outline}, "gradients and update for errors, and an outline"


def test_the_state_of_an_optimizer_can_be_thrown_away_and_made_anew() -> None:
    model, eager = seeded(Net), seeded(Net)
    ours = torch.optim.Adam(model.parameters(), lr=1e-2)
    theirs = torch.optim.Adam(eager.parameters(), lr=1e-2)
    executor = poptorch.trainingModel(model, options(), ours)

    for step in range(6):
        if step == 3:
            ours.state.clear()
            theirs.state.clear()
        executor(*batch())
        theirs.zero_grad()
        eager(*batch())[-1].backward()
        theirs.step()

    assert runs_natively(executor)
    for name, parameter in eager.named_parameters():
        assert_close(model.get_parameter(name).detach(), parameter.detach(), rtol=1e-4, atol=1e-5)
