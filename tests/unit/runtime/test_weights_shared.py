"""The default: the host module's tensors are the device's."""

from __future__ import annotations

import copy
import gc
import io

import pytest
import torch
from tests.unit.runtime.toy_models import (
    Counter,
    Regression,
    data,
    eager_step,
    options,
    same_state,
    sgd,
    twin,
)
from torch import nn

import poptorch


@pytest.fixture
def trained():
    """A model, its executor after one step, and the same in eager mode."""
    model = Regression()
    eager = twin(model)
    step, optimizer = poptorch.trainingModel(model, options(), sgd(model)), sgd(eager)
    batch = data(4)
    step(*batch)
    eager_step(eager, optimizer, [batch])
    return model, step, eager, optimizer, batch


def step_both(trained):
    _, step, eager, optimizer, batch = trained
    step(*batch)
    eager_step(eager, optimizer, [batch])


def test_the_host_sees_every_step_at_once(trained):
    model, _, eager, _, _ = trained

    assert same_state(model, eager)


def test_wrapping_changes_no_class(trained):
    model, _, _, _, _ = trained

    assert type(model) is Regression
    assert type(model.fc) is nn.Linear
    assert type(model.fc.weight) is nn.Parameter


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: nn.init.ones_(m.fc.weight),
        lambda m: setattr(m.fc.weight, "data", torch.full((2, 3), 0.5)),
        lambda m: setattr(m.fc.weight, "data", torch.full((3, 2), 0.5).t()),
        lambda m: m.load_state_dict({k: v * 2 for k, v in m.state_dict().items()}),
        lambda m: m.fc.weight.requires_grad_(False),
    ],
    ids=["in place", "data", "other strides", "load_state_dict", "frozen"],
)
def test_an_edit_on_the_host_is_seen_by_the_next_step(trained, edit):
    model, _, eager, _, _ = trained
    edit(model)
    edit(eager)
    for p in eager.parameters():
        p.grad = None

    step_both(trained)

    assert same_state(model, eager)


def test_a_replaced_parameter_is_trained_after_set_optimizer(trained):
    model, step, eager, _, batch = trained
    model.fc.weight = nn.Parameter(torch.ones(2, 3))
    eager.fc.weight = nn.Parameter(torch.ones(2, 3))

    with pytest.raises(KeyError, match="does not belong to the wrapped model"):
        step(*batch)
    step.setOptimizer(sgd(model))
    step(*batch)
    eager_step(eager, sgd(eager), [batch])

    assert same_state(model, eager)


def test_a_replaced_layer_is_used_by_the_next_inference():
    model = Regression()
    infer = poptorch.inferenceModel(model, options())
    x = torch.randn(4, 3)
    infer(x)

    model.fc = nn.Linear(3, 5)

    assert torch.equal(infer(x), model.fc(x))


def test_a_module_made_half_is_compiled_again():
    model = Regression()
    infer = poptorch.inferenceModel(model, options())
    infer(torch.ones(4, 3))

    model.double()

    assert infer(torch.ones(4, 3, dtype=torch.float64)).dtype is torch.float64


def test_inference_made_before_or_after_training_sees_the_newest_weights():
    model = Regression()
    before = poptorch.inferenceModel(model, options())
    x, target = data(4)
    before(x)
    step = poptorch.trainingModel(model, options(), sgd(model))
    after = poptorch.inferenceModel(step, options())

    for _ in range(2):
        step(x, target)
        assert torch.equal(before(x), model.fc(x))
        assert torch.equal(after(x), model.fc(x))


def test_buffers_updated_by_inference_are_seen_by_the_host():
    model = Counter()

    poptorch.inferenceModel(model, options(deviceIterations=3))(torch.ones(3, 3))

    assert model.seen == 3


def test_copies_between_host_and_device_are_harmless(trained):
    model, step, eager, _, _ = trained

    step.copyWeightsToHost()
    step.copyWeightsToDevice()
    assert step.copyWeightsToHostIfNeeded() is False
    step_both(trained)

    assert same_state(model, eager)


def test_a_second_training_executor_is_refused_until_the_first_is_destroyed():
    model = Regression()
    first = poptorch.trainingModel(model, options())

    with pytest.raises(RuntimeError, match="already been wrapped") as error:
        poptorch.trainingModel(model, options())
    assert isinstance(error.value, poptorch.Error)
    assert "model.destroy()" in str(error.value)

    model.destroy()
    second = poptorch.trainingModel(model, options())
    second.destroy()
    poptorch.trainingModel(first, options())


def test_a_forgotten_executor_does_not_hold_its_model():
    model = Regression()
    executor = poptorch.trainingModel(model, options())
    executor(*data(4))

    del executor
    gc.collect()

    assert not hasattr(model, "destroy")
    poptorch.trainingModel(model, options())


def test_a_wrapped_model_can_be_copied_and_saved(trained):
    model, _, _, _, _ = trained
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)

    loaded = torch.load(file, weights_only=False)

    assert same_state(twin, model)
    assert same_state(loaded, model)
    executor = poptorch.trainingModel(twin, options())
    twin.destroy()
    poptorch.trainingModel(executor, options())


def test_a_models_own_destroy_method_is_left_alone():
    class Own(Regression):
        def destroy(self):
            return "mine"

    model = Own()
    executor = poptorch.trainingModel(model, options())

    assert model.destroy() == "mine"
    executor.destroy()
    poptorch.trainingModel(model, options())


def test_a_parameter_registered_as_buffer_is_refused():
    model = nn.Linear(2, 2)
    model._buffers["odd"] = nn.Parameter(torch.ones(1))

    with pytest.raises(poptorch.Error, match="'odd'"):
        poptorch.trainingModel(model, options())
