"""A program that another thread interprets does not disturb the one that is recorded."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import poptorch


class Staged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("one", ipu_id=0):
            x = self.first(x).relu()
        with poptorch.Block("two", ipu_id=1):
            return F.cross_entropy(self.second(x), labels)


@pytest.fixture
def interpreting() -> Iterator[None]:
    """Another thread that runs a graph, node by node, all the time."""
    graph = make_fx(lambda x: (x * 2 + 1).relu().sin())(torch.ones(2))
    for node in graph.graph.nodes:
        node.meta["custom"] = {"turn": 99}
    done = threading.Event()

    def run() -> None:
        while not done.is_set():
            fx.Interpreter(graph).run(torch.ones(2))

    thread = threading.Thread(target=run)
    thread.start()
    yield
    done.set()
    thread.join()


def test_stages_are_those_of_the_recorded_model(interpreting: None) -> None:
    options = poptorch.Options().engine("reference").showCompilationProgressBar(False)
    for _ in range(4):
        model = poptorch.trainingModel(Staged(), options)
        model.compile(torch.ones(2, 4), torch.tensor([0, 1]))

        assert [stage["stage"] for stage in model.pipelineSchedule().as_json()["stages"]] == [0, 1]
