"""What an executor tells about itself."""

from __future__ import annotations

import datetime

import pytest
import torch
from tests.unit.runtime.toy_models import Regression, data, options, sgd, strict
from torch import nn

import poptorch
from pantile.runtime.counters import latency
from poptorch import OutputMode


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = poptorch.BeginBlock(nn.Linear(3, 2), "first", ipu_id=0)
        self.scale = nn.Parameter(torch.ones(2))
        self.note = "plain"

    def forward(self, x):
        return self.layer(x) * self.scale

    def describe(self):
        return f"{self.note} model"


def test_attributes_and_methods_of_the_model_are_reached_through_the_executor():
    model = Named()
    executor = poptorch.trainingModel(model, options())

    assert executor.layer is model.layer
    assert executor.layer.weight is model.layer.weight
    assert executor.describe() == "plain model"
    assert [n for n, _ in executor.named_parameters()] == ["scale", "layer.weight", "layer.bias"]
    assert executor.state_dict().keys() == model.state_dict().keys()
    assert torch.equal(executor.scale, model.scale)
    with pytest.raises(AttributeError, match="nothing"):
        _ = executor.nothing


def test_the_model_of_a_training_executor_is_the_original_and_of_inference_a_copy():
    model = Named()

    assert poptorch.trainingModel(model, options()).model is model
    infer = poptorch.inferenceModel(model, options())
    assert infer.model is not model
    assert infer.model.layer is model.layer


def test_eval_on_the_model_of_an_inference_executor_counts_before_the_first_call():
    class Top(nn.Module):
        def forward(self, x):
            return x + 1 if self.training else x

    infer = poptorch.inferenceModel(Top(), options())
    infer.model.eval()

    assert infer(torch.zeros(1)) == 0


def test_the_text_form_shows_the_blocks():
    text = repr(poptorch.inferenceModel(Named(), options()))

    assert "BeginBlock(user_id=first, ipu_id=0) Linear(" in text


@pytest.mark.parametrize("opts", [options, strict])
def test_the_compilation_time_is_known_after_compiling(opts):
    executor = poptorch.inferenceModel(Regression(), opts(showCompilationProgressBar=True))
    with pytest.raises(poptorch.Error, match="compile the model before"):
        executor.compilationTime()

    executor(torch.ones(1, 3))

    assert datetime.timedelta(0) < executor.compilationTime() < datetime.timedelta(minutes=5)


def test_strict_mode_times_only_with_a_progress_bar():
    executor = poptorch.inferenceModel(Regression(), strict(showCompilationProgressBar=False))
    executor(torch.ones(1, 3))

    with pytest.raises(poptorch.Error, match="set showCompilationProgressBar"):
        executor.compilationTime()


def test_tensor_names_follow_the_module_and_name_gradients():
    model = Regression()
    step = poptorch.trainingModel(model, options(), sgd(model))
    with pytest.raises(AssertionError):
        step.getTensorNames()

    step.compile(*data(4))

    names = step.getTensorNames()
    assert len(names) == len(set(names))
    for name in ("input", "input/1", "fc.weight", "fc.bias", "loss"):
        assert name in names
    for name in ("fc.weight", "fc.bias"):
        assert f"Gradient___{name}" in names
        assert f"UpdatedVar___{name}" in names


@pytest.mark.parametrize(
    ("mode", "period", "returned"),
    [
        (OutputMode.All, None, 12),
        (OutputMode.Final, None, 2),
        (OutputMode.Sum, None, 2),
        (OutputMode.EveryN, 2, 6),
    ],
)
def test_perf_counters_have_one_list_per_tensor_and_one_time_per_item(mode, period, returned):
    opts = options(deviceIterations=2, accumulation=3, replicationFactor=2)
    opts.outputMode(mode, period)
    model = Regression()
    step = poptorch.trainingModel(model, opts, sgd(model))
    assert step.getPerfCounters() == {
        name: [[]] for name in ("input", "input_complete", "output", "output_complete")
    }

    step(*data(12))

    counters = step.getPerfCounters()
    assert [len(counters[n]) for n in counters] == [2, 2, 2, 2]
    sizes = {name: {len(ticks) for ticks in lists} for name, lists in counters.items()}
    assert sizes["input"] == sizes["input_complete"] == {12}
    assert sizes["output"] == sizes["output_complete"] == {returned}
    for begin, end in zip(counters["input"][0], counters["input_complete"][0], strict=True):
        assert 0 <= begin <= end
    for ticks in counters.values():
        assert ticks[0] == sorted(ticks[0])


def test_latencies_add_up():
    infer = poptorch.inferenceModel(Regression(), options(deviceIterations=3))
    assert infer.getLatency() == (0.0, 0.0, 0.0)

    infer(torch.ones(3, 3))

    parts = [infer.getHostIpuLatency(), infer.getComputeLatency(), infer.getIpuHostLatency()]
    for shortest, longest, average in [*parts, infer.getLatency()]:
        assert 0 <= shortest <= average <= longest
    assert sum(average for _, _, average in parts) == pytest.approx(infer.getLatency()[2])


def test_of_more_inputs_than_outputs_the_earliest_of_each_group_counts():
    assert latency([0.0, 1.0, 4.0, 5.0], [2.0, 9.0]) == (2.0, 5.0, 3.5)
    assert latency([0.0], []) == (0.0, 0.0, 0.0)


def test_synthetic_data_has_no_times():
    infer = poptorch.inferenceModel(Regression(), options(enableSyntheticData=True))

    infer(torch.ones(1, 3))

    assert infer.getPerfCounters()["input"] == [[]]


def test_cycles_are_counted_when_asked_for():
    off = poptorch.inferenceModel(Regression(), options())
    off(torch.ones(1, 3))
    with pytest.raises(poptorch.Error, match="logging is disabled"):
        off.cycleCount()

    on = poptorch.inferenceModel(Regression(), options(logCycleCount=True))
    on.compile(torch.ones(1, 3))
    with pytest.raises(poptorch.Error, match="at least once"):
        on.cycleCount()
    on(torch.ones(1, 3))
    assert on.cycleCount() > 0


def test_strict_mode_counts_no_cycles_on_the_ipu_model():
    infer = poptorch.inferenceModel(Regression(), strict(logCycleCount=True, useIpuModel=True))

    with pytest.raises(poptorch.Error, match="only supported on actual"):
        infer(torch.ones(1, 3))


def test_the_executable_is_there_once_compiled():
    infer = poptorch.inferenceModel(Regression(), options())
    assert infer._executable is None

    infer.compile(torch.ones(1, 3))

    assert infer._executable is not None
