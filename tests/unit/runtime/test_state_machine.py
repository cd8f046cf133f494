"""The states of an executor (spec, Appendix B), hooks, and what a failed capture leaves behind."""

from __future__ import annotations

import pytest
import torch
from tests.unit.runtime.toy_models import (
    Pass,
    Regression,
    close_state,
    data,
    eager_step,
    options,
    same_state,
    sgd,
    strict,
    twin,
)
from torch import nn

import poptorch
from poptorch import ConnectionType

BOTH = pytest.mark.parametrize("opts", [options, strict], ids=["default", "strict"])


def states(executor):
    return executor.isCompiled(), executor.isAttachedToDevice()


@BOTH
def test_an_executor_walks_through_its_states(opts):
    model = Regression()
    executor = poptorch.trainingModel(model, opts(), sgd(model))
    assert states(executor) == (False, False)

    executor.compile(*data(4))
    assert states(executor) == (True, True)
    executor.detachFromDevice()
    assert states(executor) == (True, False)
    executor.attachToDevice()
    assert states(executor) == (True, True)
    executor.detachFromDevice()
    executor(*data(4))
    assert states(executor) == (True, True)
    executor.destroy()
    assert states(executor) == (False, False)
    executor(*data(6))
    assert states(executor) == (True, True)


@BOTH
def test_compiling_changes_no_weight(opts):
    model = Regression()
    before = twin(model)

    poptorch.trainingModel(model, opts(), sgd(model)).compile(*data(4))

    assert same_state(model, before)


@BOTH
@pytest.mark.parametrize(
    "ask",
    [
        lambda e: e.detachFromDevice(),
        lambda e: e.attachToDevice(),
        lambda e: e.copyWeightsToHost(),
        lambda e: e.copyWeightsToDevice(),
        lambda e: e.copyNamedBuffersToDevice(),
        lambda e: e.rng_state,
    ],
)
def test_what_needs_a_compiled_model_says_so(opts, ask):
    executor = poptorch.trainingModel(Regression(), opts())

    with pytest.raises(poptorch.Error, match="has not been compiled"):
        ask(executor)

    executor.destroy()


@BOTH
def test_attaching_and_detaching_twice_are_errors(opts):
    executor = poptorch.inferenceModel(Regression(), opts())
    executor.compile(torch.ones(1, 3))

    with pytest.raises(poptorch.Error, match="already attached"):
        executor.attachToDevice()
    executor.detachFromDevice()
    with pytest.raises(poptorch.Error, match="not attached"):
        executor.detachFromDevice()


def test_on_demand_attaches_at_the_first_call():
    executor = poptorch.inferenceModel(
        Regression(), options(connectionType=ConnectionType.OnDemand)
    )

    executor.compile(torch.ones(1, 3))
    assert states(executor) == (True, False)
    executor(torch.ones(1, 3))
    assert states(executor) == (True, True)


def test_an_offline_target_compiles_and_never_runs():
    executor = poptorch.inferenceModel(Regression(), options().useOfflineIpuTarget())
    executor.compile(torch.ones(1, 3))
    assert states(executor) == (True, False)

    for call in (executor.attachToDevice, lambda: executor(torch.ones(1, 3))):
        with pytest.raises(AssertionError, match="on an offline device") as error:
            call()
        assert isinstance(error.value, poptorch.Error)


def test_training_continues_exactly_across_destroy_with_another_shape():
    model = Regression()
    eager = twin(model)
    step, optimizer = poptorch.trainingModel(model, strict(), sgd(model)), sgd(eager)

    for rows in (4, 6):
        batch = data(rows)
        step(*batch)
        eager_step(eager, optimizer, [batch])
        step.destroy()

    assert same_state(model, eager)


def test_an_inference_executor_has_no_optimizer():
    with pytest.raises(poptorch.Error, match="no optimizer"):
        poptorch.inferenceModel(Regression(), options()).setOptimizer(sgd(Regression()))


@pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
def test_options_and_models_of_a_wrong_type_are_refused(wrap):
    with pytest.raises(poptorch.Error, match="options is a dict"):
        wrap(Regression(), {})
    with pytest.raises(poptorch.Error, match="model is a function"):
        wrap(lambda x: x, options())


def test_options_are_frozen_by_wrapping_and_the_executors_are_its_own():
    opts = options(deviceIterations=2)
    executor = poptorch.inferenceModel(Regression(), opts)

    for frozen in (opts, executor.options):
        with pytest.raises(AttributeError, match="frozen"):
            frozen.deviceIterations(3)
    assert executor.options is not opts
    assert executor._options.toDict()["replication_factor"] == 1


def test_without_an_optimizer_it_is_sgd_with_a_rate_of_one_hundredth():
    model = Regression()
    eager = twin(model)
    batch = data(4)

    poptorch.trainingModel(model, options())(*batch)
    eager_step(eager, sgd(eager, 0.01), [batch])

    assert same_state(model, eager)


def test_a_model_without_parameters_can_be_trained():
    def forward(x):
        return poptorch.identity_loss(x, reduction="mean")

    assert poptorch.trainingModel(Pass(forward), options())(torch.ones(4)) == 1.0


def test_a_model_that_hides_itself_from_pickling_can_be_wrapped():
    class Hidden(Regression):
        def __getstate__(self):
            return {}

    model, x = Hidden(), torch.ones(2, 3)

    assert torch.equal(poptorch.inferenceModel(model, options())(x), model(x))


def test_a_lazy_model_is_refused_until_it_has_shapes():
    model = nn.LazyLinear(2)
    infer = poptorch.inferenceModel(model, options())
    x = torch.ones(4, 3)

    with pytest.raises(poptorch.Error, match="'weight' has no shape yet"):
        infer(x)
    expected = model(x)

    assert torch.equal(infer(x), expected)


# Hooks


def test_hooks_run_around_each_compilation_in_order_until_removed():
    events = []
    handles = [
        poptorch.registerPreCompileHook(lambda: events.append("before 1")),
        poptorch.registerPreCompileHook(lambda: events.append("before 2")),
        poptorch.registerPostCompileHook(lambda: events.append("after")),
    ]
    model = poptorch.inferenceModel(Pass(lambda x: events.append("forward") or x), options())

    model(torch.ones(1))
    model(torch.ones(1))
    for handle in handles:
        handle.remove()
    model(torch.ones(2))

    assert events == ["before 1", "before 2", "forward", "after", "forward"]


def test_the_post_hook_runs_when_capture_fails():
    events = []

    def forward(x):
        raise ValueError("no")

    with (
        poptorch.registerPostCompileHook(lambda: events.append("after")),
        pytest.raises(ValueError, match="no"),
    ):
        poptorch.inferenceModel(Pass(forward), options())(torch.ones(1))

    assert events == ["after"]


def test_hooks_must_be_callable():
    for register in (poptorch.registerPreCompileHook, poptorch.registerPostCompileHook):
        with pytest.raises(RuntimeError, match="must be callable"):
            register(3)


def test_is_running_on_ipu_only_during_capture():
    seen = []

    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            seen.append(poptorch.isRunningOnIpu())

        def forward(self, x):
            seen.append(poptorch.isRunningOnIpu())
            return x

    model = Asks()
    model(torch.ones(1))
    poptorch.inferenceModel(model, options())(torch.ones(1))

    assert seen == [False, False, True]
    assert not poptorch.isRunningOnIpu()


# Failed captures


@BOTH
def test_a_failed_capture_leaves_the_model_intact(opts):
    class Fails(Regression):
        fail = True

        def forward(self, x, target):
            out = self.fc(x)
            if self.fail and float(out.sum()) > 0:
                return out
            return super().forward(x, target)

    model = Fails()
    before, flags = twin(model), [m.training for m in model.modules()]
    parameters = dict(model.named_parameters())
    step = poptorch.trainingModel(model, opts(), sgd(model))

    with pytest.raises(poptorch.Error):
        step(*data(4))

    assert same_state(model, before)
    assert all(a is b for a, b in zip(parameters.values(), model.parameters(), strict=True))
    assert [m.training for m in model.modules()] == flags
    assert states(step) == (False, False)
    assert not poptorch.isRunningOnIpu()

    Fails.fail = False
    eager, batch = twin(before), data(4)
    step(*batch)
    step.copyWeightsToHost()
    eager_step(eager, sgd(eager), [batch])
    assert close_state(model, eager)


def test_weights_edited_after_a_failed_capture_are_the_ones_uploaded():
    class Fails(Regression):
        fail = True

        def forward(self, x, target=None):
            if self.fail:
                raise ValueError("not yet")
            return super().forward(x, target)

    model = Fails()
    infer = poptorch.inferenceModel(model, strict())
    x = torch.randn(4, 3)
    with pytest.raises(ValueError, match="not yet"):
        infer(x)

    nn.init.ones_(model.fc.weight)
    Fails.fail = False

    assert torch.equal(infer(x), model(x))


def test_registered_substitutions_are_active_during_capture_only():
    from poptorch._poplar_executor import _OverwriteContextManager

    events = []

    class Swap:
        def __enter__(self):
            events.append("enter")

        def __exit__(self, *error):
            events.append("exit")

    _OverwriteContextManager.registerSubsitutionManager(Swap)
    try:
        model = poptorch.inferenceModel(Pass(lambda x: events.append("forward") or x), options())
        model(torch.ones(1))
        model(torch.ones(1))
    finally:
        from pantile.runtime import substitution

        substitution._makers.remove(Swap)

    assert events == ["enter", "forward", "exit"]
