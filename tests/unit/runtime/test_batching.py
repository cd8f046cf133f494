"""The layout of dim 0, and what each output mode returns."""

from __future__ import annotations

import pytest
import torch
from tests.unit.runtime.toy_models import (
    Counter,
    Pass,
    Regression,
    close_state,
    data,
    eager_step,
    options,
    sgd,
    twin,
)
from torch import nn

import poptorch
from poptorch import CommGroupType, OutputMode


@pytest.mark.parametrize(("iterations", "accumulation"), [(1, 1), (3, 1), (1, 5), (3, 5), (5, 3)])
def test_buffers_follow_micro_batches_and_parameters_follow_device_iterations(
    iterations, accumulation
):
    model = Counter()
    eager = twin(model)
    x, target = data(2 * iterations * accumulation)
    step = poptorch.trainingModel(
        model, options(deviceIterations=iterations, accumulation=accumulation), sgd(model)
    )

    step(x, target)

    optimizer = sgd(eager)
    batches = list(zip(x.split(2), target.split(2), strict=True))
    for i in range(iterations):
        eager_step(eager, optimizer, batches[i * accumulation : (i + 1) * accumulation])
    assert eager.seen == iterations * accumulation
    assert close_state(model, eager)


def test_rows_are_laid_out_by_iteration_accumulation_step_replica_and_sample():
    model = Pass(lambda x, w: (x, poptorch.identity_loss((w * x).sum(), reduction="none")))
    model.register_parameter("unused", nn.Parameter(torch.ones(1)))
    opts = options(deviceIterations=2, accumulation=3, replicationFactor=2)
    opts.outputMode(OutputMode.All)
    x = torch.arange(24.0).reshape(24, 1)

    out, loss = poptorch.trainingModel(model, opts)(x, torch.ones(24, 1))

    assert torch.equal(out, x)
    assert torch.equal(loss, x.reshape(12, 2).sum(1))


@pytest.mark.parametrize(
    ("mode", "period", "rows"),
    [
        (OutputMode.All, None, range(24)),
        (OutputMode.Final, None, range(20, 24)),
        (OutputMode.EveryN, 2, range(12, 24)),
        (OutputMode.EveryN, 1, range(24)),
    ],
)
def test_each_output_mode_returns_its_micro_batches(mode, period, rows):
    opts = options(deviceIterations=2, accumulation=3, replicationFactor=2)
    opts.outputMode(mode, period)
    model = Regression(1, 1)
    x = torch.arange(24.0).reshape(24, 1)

    out, loss = poptorch.trainingModel(model, opts, sgd(model, 0.0))(x, x)

    wanted = x[list(rows)]
    assert torch.equal(out, torch.cat([model.fc(part) for part in wanted.split(2)]))
    assert loss.shape == (len(rows) // 2,)


def test_sum_adds_micro_batches_separately_for_each_replica():
    opts = options(deviceIterations=3, replicationFactor=2)
    opts.outputMode(OutputMode.Sum)
    x = torch.arange(12.0).reshape(12, 1)

    out, total = poptorch.inferenceModel(Pass(lambda x: (x, x.sum())), opts)(x)

    parts = x.reshape(3, 2, 2, 1)
    assert torch.equal(out, parts.sum(0).reshape(4, 1))
    assert torch.equal(total, parts.sum((0, 2, 3)))


@pytest.mark.parametrize("mode", [OutputMode.Final, OutputMode.Sum, OutputMode.All])
def test_a_single_result_keeps_its_shape(mode):
    opts = options()
    opts.outputMode(mode)

    total, rows = poptorch.inferenceModel(Pass(lambda x: (x.sum(), x)), opts)(torch.ones(4, 2))

    assert total.shape == ()
    assert rows.shape == (4, 2)


def test_training_returns_the_last_loss_and_inference_everything_by_default():
    model = Regression()
    x, target = data(8)

    train = poptorch.trainingModel(model, options(deviceIterations=4), sgd(model))
    infer = poptorch.inferenceModel(model, options(deviceIterations=4))

    assert train(x, target)[1].shape == ()
    assert infer(x).shape == (8, 2)
    assert train.options.output_mode is OutputMode.Final
    assert infer.options.output_mode is OutputMode.All


def test_the_users_options_keep_the_default_mode():
    opts = options()

    poptorch.inferenceModel(Regression(), opts)

    assert opts.defaultOutputMode()


def test_a_period_that_leaves_a_rest_is_refused():
    opts = options(deviceIterations=4)
    opts.outputMode(OutputMode.EveryN, 3)

    with pytest.raises(poptorch.Error, match="must divide deviceIterations"):
        poptorch.inferenceModel(Regression(), opts)


@pytest.mark.parametrize(
    ("kind", "group_of"),
    [
        (CommGroupType.Consecutive, lambda r: r // 2),
        (CommGroupType.Orthogonal, lambda r: r % 2),
    ],
)
def test_replicas_of_an_input_group_read_the_same_rows(kind, group_of):
    opts = options(replicationFactor=4).inputReplicaGrouping(2, kind)
    x = torch.arange(6.0).reshape(6, 1)

    out = poptorch.inferenceModel(Pass(lambda x: x * 2), opts)(x)

    parts = x.split(3)
    assert torch.equal(out, torch.cat([parts[group_of(r)] * 2 for r in range(4)]))


def test_a_batch_that_does_not_divide_is_refused_with_all_factors():
    opts = options(deviceIterations=2, replicationFactor=3)
    model = poptorch.inferenceModel(Regression(), opts)

    with pytest.raises(AssertionError, match="Invalid batch dimension") as error:
        model(torch.ones(7, 3))

    text = str(error.value)
    assert isinstance(error.value, poptorch.Error)
    assert "'x'" in text
    for factor in ("deviceIterations (2)", "gradientAccumulation (1)", "replicationFactor (3)"):
        assert factor in text
    assert model(torch.ones(6, 3)).shape == (6, 2)


def test_scalars_are_allowed_only_when_there_is_one_micro_batch():
    double = Pass(lambda x: x * 2)

    assert poptorch.inferenceModel(double, options())(torch.tensor(3.0)) == 6.0
    with pytest.raises(AssertionError, match="Invalid batch dimension"):
        poptorch.inferenceModel(double, options(deviceIterations=2))(torch.tensor(3.0))


def test_inference_with_gradient_accumulation_is_refused():
    with pytest.raises(poptorch.Error, match=r"gradientAccumulation.*deviceIterations"):
        poptorch.inferenceModel(Regression(), options(accumulation=2))
