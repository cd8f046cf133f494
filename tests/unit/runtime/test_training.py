"""poptorch.optim through an executor, its device state, and PopTorch's strict rules."""

import copy
import logging

import pytest
import torch
from tests.unit.runtime.optimizer_runs import Net, batches, eager_step, options, pair, same
from torch import nn

import poptorch
from pantile.errors import OptimizerError, OptimizerStateError


def close(model, twin, tolerance):
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


# The rules


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "dampening": 0.2}),
        (
            "SGD",
            {"lr": 0.1, "momentum": 0.9, "use_combined_accum": True, "velocity_scaling": 2.0},
        ),
        ("SGD", {"lr": 0.1, "momentum": 0.9, "velocity_accum_type": torch.float16}),
        ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
        ("Adam", {"lr": 0.01, "second_order_momentum_accum_type": torch.float16}),
        ("AdamW", {"lr": 0.01}),
        ("AdamW", {"lr": 0.01, "bias_correction": False}),
        ("RMSprop", {"lr": 0.01, "momentum": 0.5, "centered": True}),
        ("RMSprop", {"lr": 0.01, "momentum": 0.5, "use_tf_variant": True}),
        ("LAMB", {"lr": 0.01}),
        ("LAMB", {"lr": 0.01, "bias_correction": False, "max_weight_norm": 0.5}),
    ],
)
def test_five_steps_equal_the_rules_own_step_on_the_cpu(name, settings):
    executor, model, _, twin, reference = pair(
        lambda m: getattr(poptorch.optim, name)(m.parameters(), **settings)
    )

    for batch in batches(5):
        executor(*batch)
        eager_step(twin, reference, batch)

    assert same(model, twin)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_max_grad_norm_clips_as_clip_grad_norm_does(name):
    executor, model, _, twin, _ = pair(
        lambda m: getattr(poptorch.optim, name)(m.parameters(), lr=0.05, max_grad_norm=0.1)
    )
    reference = getattr(torch.optim, name)(twin.parameters(), lr=0.05)

    for batch in batches(4):
        executor(*batch)
        reference.zero_grad()
        twin(*batch)[1].backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
        reference.step()

    close(model, twin, 1e-6)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "LAMB"])
def test_loss_scaling_is_neutral_and_not_returned(name):
    settings = {"lr": 0.05, "momentum": 0.9} if name == "SGD" else {"lr": 0.01}
    executor, model, _, twin, reference = pair(
        lambda m: getattr(poptorch.optim, name)(m.parameters(), loss_scaling=128.0, **settings)
    )

    for batch in batches(4):
        loss = executor(*batch)[1]
        wanted = eager_step(twin, reference, batch)
        torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=1e-6)

    close(model, twin, 1e-6)


def test_loss_scaling_may_change_at_any_time():
    executor, model, optimizer, twin, reference = pair(
        lambda m: poptorch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    )

    for scale, batch in zip((1.0, 64.0, 8.0, 1.0), batches(4), strict=True):
        optimizer.loss_scaling = scale
        executor(*batch)
        eager_step(twin, reference, batch)

    close(model, twin, 1e-6)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_half_model_learns_from_gradients_below_halfs_range(accumulation):
    class Faint(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, dtype=torch.float16))

        def forward(self, x):
            loss = ((x * self.weight).float() * 1e-9).sum()
            return poptorch.identity_loss(loss, reduction="none")

    model = Faint()
    chosen = options()
    chosen.Training.gradientAccumulation(accumulation)
    optimizer = poptorch.optim.Adam(
        model.parameters(), lr=0.25, eps=1e-20, loss_scaling=float(2**20)
    )

    poptorch.trainingModel(model, chosen, optimizer)(torch.ones(accumulation, 3).half())

    # The first step of Adam is the learning rate, whatever the size of the gradient.
    torch.testing.assert_close(model.weight.float(), torch.full((3,), -0.25), rtol=1e-3, atol=0)


# The mean reduction strategy


def test_half_accumulators_force_a_running_mean():
    model = Net()
    chosen = options()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, accum_type=torch.float16)

    executor = poptorch.trainingModel(model, chosen, optimizer)

    strategy = executor.options.Training.meanAccumulationAndReplicationReductionStrategy
    assert strategy == poptorch.MeanReductionStrategy.Running
    theirs = chosen.Training.meanAccumulationAndReplicationReductionStrategy
    assert theirs == poptorch.MeanReductionStrategy.Post


def test_the_combined_variant_keeps_the_strategy():
    model = Net()
    optimizer = poptorch.optim.SGD(
        model.parameters(), lr=0.1, accum_type=torch.float16, use_combined_accum=True
    )

    executor = poptorch.trainingModel(model, options(), optimizer)

    strategy = executor.options.Training.meanAccumulationAndReplicationReductionStrategy
    assert strategy == poptorch.MeanReductionStrategy.Post


def test_a_compiled_model_cannot_change_its_strategy():
    model = Net()
    executor = poptorch.trainingModel(
        model, options(), poptorch.optim.SGD(model.parameters(), lr=0.1)
    )
    executor(*next(batches(1)))

    with pytest.raises(ValueError, match="is already compiled"):
        executor.setOptimizer(
            poptorch.optim.SGD(model.parameters(), lr=0.1, accum_type=torch.float16)
        )


# Device state


@pytest.mark.parametrize("strict", [False, True])
def test_the_device_state_has_poptorchs_names_and_values(strict):
    model = Net()
    optimizer = poptorch.optim.SGD(
        model.parameters(),
        lr=0.5,
        momentum=0.9,
        dampening=0.2,
        weight_decay=0.1,
        loss_scaling=4.0,
    )
    executor = poptorch.trainingModel(model, options(strict), optimizer)
    before = optimizer.state_dict()

    executor(*next(batches(1)))
    state = optimizer.state_dict()

    assert before["ipu_state"] is None and before["ipu_param"] is None
    names = [f"{layer}.{kind}" for layer in ("first", "second") for kind in ("weight", "bias")]
    assert set(state["ipu_state"]) == {f"Accl1___{name}" for name in names}
    param = state["ipu_param"]
    assert param["lossScaling_FLOAT"].item() == 4.0
    scaled = param["scaledLearningRate0___specific___first.weight"].item()
    assert scaled == pytest.approx(0.5 * (1 - 0.2) / 4.0)
    decay = param["weightDecayScaleFactor0___specific___second.bias"].item()
    assert decay == pytest.approx(1 - 0.5 * (1 - 0.2) * 0.1)


def test_an_offline_target_has_no_device_state():
    model = Net()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.25)
    chosen = options().connectionType(poptorch.ConnectionType.Never)
    executor = poptorch.trainingModel(model, chosen, optimizer)

    executor.compile(*next(batches(1)))

    state = optimizer.state_dict()
    assert state["ipu_state"] is None
    assert state["ipu_param"] is None


def test_adam_exposes_learning_rate_and_both_moments():
    model = Net()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.25, weight_decay=0.5)
    executor = poptorch.trainingModel(model, options(), optimizer)

    executor(*next(batches(1)))
    state = optimizer.state_dict()

    first = optimizer.state[model.first.bias]
    assert torch.equal(state["ipu_state"]["Accl1___first.bias"], first["exp_avg"])
    assert torch.equal(state["ipu_state"]["Accl2___first.bias"], first["exp_avg_sq"])
    assert state["ipu_param"]["learningRate___specific___first.bias"].item() == 0.25
    assert state["ipu_param"]["weightDecay___specific___first.bias"].item() == 0.5


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_saved_state_continues_in_another_executor(strict, compiled):
    def make(model):
        return poptorch.optim.Adam(model.parameters(), lr=0.05)

    model = Net()
    optimizer = make(model)
    executor = poptorch.trainingModel(model, options(strict), optimizer)
    for batch in batches(3):
        executor(*batch)
    saved = copy.deepcopy(optimizer.state_dict())
    weights = copy.deepcopy({k: v.detach().clone() for k, v in model.state_dict().items()})
    other = Net()
    resumed = make(other)
    second = poptorch.trainingModel(other, options(strict), resumed)
    (batch,) = batches(1, seed=9)
    if compiled:
        second(*batch)

    second.load_state_dict(weights)
    resumed.load_state_dict(saved)
    for batch in batches(2, seed=5):
        executor(*batch)
        second(*batch)

    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_strict_mode_reads_lazily_and_keeps_the_state_over_destroy():
    model = Net()
    twin = copy.deepcopy(model)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.05)
    reference = torch.optim.Adam(twin.parameters(), lr=0.05)
    executor = poptorch.trainingModel(model, options(strict=True), optimizer)
    first, second = batches(2)

    executor(*first)
    dirty = optimizer.ipu_state_is_dirty
    executor.destroy()
    kept = optimizer.state_dict()["ipu_state"]["Accl1___first.bias"].clone()
    executor(*second)
    for batch in (first, second):
        eager_step(twin, reference, batch)

    assert dirty
    assert kept.abs().sum() > 0
    executor.copyWeightsToHostIfNeeded()
    close(model, twin, 1e-6)


def test_the_old_optimizer_keeps_the_state_read_last():
    model = Net()
    old = poptorch.optim.Adam(model.parameters(), lr=0.05)
    executor = poptorch.trainingModel(model, options(), old)
    first, second = batches(2)
    executor(*first)
    kept = old.state_dict()["ipu_state"]["Accl1___first.bias"].clone()

    new = poptorch.optim.Adam(model.parameters(), lr=0.1)
    executor.setOptimizer(new)
    executor(*second)

    assert torch.equal(old.state_dict()["ipu_state"]["Accl1___first.bias"], kept)
    assert not torch.equal(new.state_dict()["ipu_state"]["Accl1___first.bias"], kept)


def test_strict_mode_loads_device_states_only():
    model = Net()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.05)
    executor = poptorch.trainingModel(model, options(strict=True), optimizer)
    executor(*next(batches(1)))

    with pytest.raises(OptimizerStateError, match="Only IPU optimizer states"):
        optimizer.load_state_dict(torch.optim.Adam(model.parameters()).state_dict())


def test_in_strict_mode_torch_optimizers_show_no_device_state():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    executor = poptorch.trainingModel(model, options(strict=True), optimizer)

    executor(*next(batches(1)))

    assert not optimizer.state


# PopTorch's rules


def test_in_strict_mode_a_new_value_counts_after_set_optimizer():
    executor, model, optimizer, twin, reference = pair(
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), options(strict=True)
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    used = (0.1, 0.1, 0.1 * 0.1 * 0.1)

    for step, (lr, batch) in enumerate(zip(used, batches(3), strict=True)):
        if step == 2:
            executor.setOptimizer(optimizer)
        executor(*batch)
        schedule.step()
        reference.param_groups[0]["lr"] = lr
        eager_step(twin, reference, batch)

    executor.copyWeightsToHostIfNeeded()
    close(model, twin, 1e-6)


def test_in_strict_mode_adamw_always_corrects_the_bias():
    executor, model, _, twin, _ = pair(
        lambda m: poptorch.optim.AdamW(m.parameters(), lr=0.05, bias_correction=False),
        options(strict=True),
    )
    reference = torch.optim.AdamW(twin.parameters(), lr=0.05)

    for batch in batches(3):
        executor(*batch)
        eager_step(twin, reference, batch)

    executor.copyWeightsToHostIfNeeded()
    close(model, twin, 1e-6)


def strict_executor(make):
    model = Net()
    executor = poptorch.trainingModel(model, options(strict=True), make(model))
    executor(*next(batches(1)))
    return executor, model


@pytest.mark.parametrize(
    ("make", "later", "name"),
    [
        (
            lambda m: poptorch.optim.Adam(m.parameters()),
            lambda m: poptorch.optim.Adam(m.parameters(), lr=0.5),
            "lr",
        ),
        (
            lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
            lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.5),
            "momentum",
        ),
        (
            lambda m: poptorch.optim.SGD(m.parameters(), lr=0.1),
            lambda m: poptorch.optim.SGD(m.parameters(), lr=0.1, loss_scaling=2.0),
            "loss_scaling",
        ),
    ],
)
def test_in_strict_mode_a_constant_cannot_change_after_compilation(make, later, name):
    executor, model = strict_executor(make)

    with pytest.raises(poptorch.Error, match=f"'{name}'.*constant"):
        executor.setOptimizer(later(model))


def test_in_strict_mode_what_was_marked_variable_may_change():
    def make(model, **settings):
        optimizer = poptorch.optim.Adam(model.parameters(), **settings)
        optimizer.variable_attrs.markAsVariable("lr")
        return optimizer

    executor, model = strict_executor(make)

    executor.setOptimizer(make(model, lr=0.0))
    before = model.first.weight.detach().clone()
    executor(*next(batches(1)))

    assert torch.equal(model.first.weight, before)


def test_in_strict_mode_equal_values_change_nothing():
    executor, model = strict_executor(lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
    bound = executor._update.bound

    executor.setOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    assert executor._update.bound is bound


def test_in_strict_mode_the_number_of_groups_is_fixed():
    executor, model = strict_executor(lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
    groups = [{"params": m.parameters()} for m in (model.first, model.second)]

    with pytest.raises(OptimizerError, match="2 parameter groups"):
        executor.setOptimizer(torch.optim.SGD(groups, lr=0.2))


def test_in_strict_mode_new_attributes_are_warned_about(caplog):
    executor, model = strict_executor(lambda m: torch.optim.SGD(m.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    caplog.set_level(logging.WARNING)

    executor.setOptimizer(optimizer)

    assert "unexpected group 0 attribute" in caplog.text
    assert "initial_lr" in caplog.text


def test_relaxed_checks_do_not_warn(caplog):
    model = Net()
    chosen = options(strict=True).relaxOptimizerAttributesChecks(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, chosen, optimizer)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    caplog.set_level(logging.WARNING)

    executor.setOptimizer(optimizer)

    assert "unexpected" not in caplog.text
