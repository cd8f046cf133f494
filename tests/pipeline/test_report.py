"""What an executor tells about its stages."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from tests.unit.runtime.toy_models import options, strict
from torch import nn

import poptorch
from pantile.schedule import parse_schedule, print_schedule
from poptorch import BeginBlock


class Wide(nn.Module):
    """Linear layers of the given widths, one per IPU."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            BeginBlock(nn.Linear(a, b, bias=False), f"b{i}", ipu_id=i)
            for i, (a, b) in enumerate(pairwise(widths))
        )

    def forward(self, x, target=None):
        for layer in self.layers:
            x = layer(x)
        return x if target is None else (x, F.mse_loss(x, target))


def compiled(model: Wide, opts: poptorch.Options):
    executor = poptorch.trainingModel(model, opts)
    rows = 4 * opts.Training.gradient_accumulation
    first, last = model.layers[0].in_features, model.layers[-1].out_features
    executor.compile(torch.ones(rows, first), torch.ones(rows, last))
    return executor


def test_the_schedule_is_a_pipeline_over_the_accumulation_steps():
    report = compiled(Wide(8, 8, 8), options(accumulation=5)).pipelineSchedule()

    schedule = report.schedule
    assert (schedule.name, schedule.stages, schedule.micro_batches) == ("pipelined", 2, 5)
    assert parse_schedule(print_schedule(schedule)) == schedule
    assert str(report).startswith(print_schedule(schedule))


def test_the_cost_of_a_stage_is_that_of_its_products():
    costs = compiled(Wide(8, 16, 4), options(accumulation=2)).pipelineSchedule().costs

    # B · in · out multiplications and additions; backward has two such products, the first layer
    # one, because nobody asks for the gradient of the input. The rest is the loss: 4 · 4 elements.
    first, second = 2 * 4 * 8 * 16, 2 * 4 * 16 * 4
    assert costs[0].forward.flops == first
    assert costs[0].backward.flops == first
    assert second <= costs[1].forward.flops <= second + 4 * 16
    assert 2 * second <= costs[1].backward.flops <= 2 * second + 4 * 16
    assert [cost.parameters for cost in costs] == [4 * 8 * 16, 4 * 16 * 4]
    # Stage 0 sends its output, which stage 1 keeps for the gradient of its weight.
    assert (costs[0].sent, costs[1].sent) == (4 * 4 * 16, 0)
    assert [cost.blocks for cost in costs] == [("b0",), ("b1",)]


def test_the_report_is_plain_json():
    report = compiled(Wide(8, 8, 8), options(accumulation=3)).pipelineSchedule()

    data = json.loads(report.json())

    assert data["schedule"]["cycles"][0] == ["0F0", ""]
    assert [stage["ipu"] for stage in data["stages"]] == [0, 1]
    assert data["simulated"]["in_flight"] == [3, 1]


def test_recomputation_shows_in_the_schedule():
    opts = options(accumulation=2)
    opts._Popart.set("autoRecomputation", "RecomputationType.Pipeline")

    class Deep(Wide):
        def forward(self, x, target=None):
            return super().forward(torch.tanh(x), target)

    report = compiled(Deep(8, 8, 8), opts).pipelineSchedule()

    assert "0R0 0B0" in str(report)
    assert "1R0" not in str(report)
    assert report.costs[0].recompute.flops > 0


def test_an_unknown_kind_of_recomputation_is_refused():
    for setting in ("Some", 9, 1.5):
        opts = options(accumulation=2)
        opts._Popart.set("autoRecomputation", setting)

        with pytest.raises(poptorch.Error, match="no such RecomputationType"):
            compiled(Wide(8, 8, 8), opts)


def test_a_model_without_blocks_has_one_stage():
    executor = poptorch.inferenceModel(nn.Linear(2, 2), options(deviceIterations=3))
    executor.compile(torch.ones(3, 2))

    report = executor.pipelineSchedule()

    assert [len(row) for row in report.schedule.cycles] == [1, 1, 1]
    assert report.balance == 1.0


def test_there_is_no_schedule_before_the_model_is_compiled():
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        poptorch.inferenceModel(nn.Linear(2, 2)).pipelineSchedule()


def test_an_impossible_placement_is_refused_with_the_cost_of_its_stages():
    with pytest.raises(poptorch.Error, match="must be greater than or equal") as error:
        compiled(Wide(8, 8, 64), strict(accumulation=2))

    lines = str(error.value).splitlines()
    heading = next(i for i, line in enumerate(lines) if line.startswith("stage"))
    assert "forward" in lines[heading] and "share" in lines[heading]
    assert " b0 " in lines[heading + 1] and " b1 " in lines[heading + 2]


def test_an_unbalanced_placement_is_told_to_those_who_will_run_on_hardware(caplog):
    caplog.set_level("WARNING", logger="poptorch")
    for opts in (options(accumulation=7), strict(accumulation=7)):
        compiled(Wide(4, 4, 4, 4, 512), opts)

    told = [record.getMessage() for record in caplog.records if "unbalanced" in record.getMessage()]
    assert len(told) == 1
    assert "b3" in told[0]
