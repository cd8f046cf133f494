"""Training on the native engine gives the numbers of the reference engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.native.runs import (
    Compilations,
    MakeOptimizer,
    Net,
    Normed,
    Pair,
    assert_close,
    batch,
    momentum,
    options,
    runs_natively,
    seeded,
    training_pair,
)

import poptorch
from poptorch.enums import MeanReductionStrategy, OutputMode, ReductionType

FUSED = [
    (3, (OutputMode.All,)),
    (3, (OutputMode.Final,)),
    (4, (OutputMode.EveryN, 2)),
    (3, (OutputMode.Sum,)),
]
SPLIT = [
    ((3, 4, 1), (OutputMode.All,)),
    ((2, 2, 2), (OutputMode.Final,)),
    ((4, 1, 4), (OutputMode.EveryN, 2)),
    ((2, 2, 2), (OutputMode.Sum,)),
    ((1, 2, 2), (OutputMode.All,)),
]


@pytest.mark.parametrize(("iterations", "mode"), FUSED, ids=lambda v: str(v))
def test_device_iterations_in_every_output_mode(iterations: int, mode: tuple) -> None:
    pair = training_pair(deviceIterations=iterations, outputMode=mode)

    pair.check(*batch(iterations), calls=3)

    assert runs_natively(pair.native)


@pytest.mark.parametrize(("shape", "mode"), SPLIT, ids=lambda v: str(v))
def test_accumulation_and_replicas_in_every_output_mode(shape: tuple, mode: tuple) -> None:
    iterations, accumulation, replicas = shape
    pair = training_pair(
        accumulation=accumulation,
        deviceIterations=iterations,
        replicationFactor=replicas,
        outputMode=mode,
    )

    pair.check(*batch(iterations * accumulation * replicas), calls=3)

    assert runs_natively(pair.native)


def summed(chosen: poptorch.Options) -> None:
    chosen.Training.accumulationAndReplicationReductionType(ReductionType.Sum)


def running(chosen: poptorch.Options) -> None:
    strategy = MeanReductionStrategy.Running
    chosen.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)


@pytest.mark.parametrize(
    "edit", [pytest.param(summed, marks=pytest.mark.slow), running], ids=["sum", "running mean"]
)
def test_reductions(edit: Callable[[poptorch.Options], None]) -> None:
    pair = training_pair(
        edit=edit,
        accumulation=3,
        replicationFactor=2,
        deviceIterations=2,
        outputMode=OutputMode.All,
    )

    pair.check(*batch(12), calls=2)

    assert runs_natively(pair.native)


def half_accumulators(parameters) -> torch.optim.Optimizer:
    half = torch.float16
    return poptorch.optim.SGD(
        parameters, lr=0.1, momentum=0.9, accum_type=half, velocity_accum_type=half
    )


def test_gradients_accumulated_in_half_precision() -> None:
    pair = training_pair(half_accumulators, accumulation=2, replicationFactor=2)
    x, labels = batch(4)

    for _ in range(3):
        assert_close(pair.native(x, labels), pair.reference(x, labels), rtol=2e-3)

    assert runs_natively(pair.native)
    state = pair.native._update.bound.state
    assert {s["momentum_buffer"].dtype for s in state.values()} == {torch.float16}


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "scaled loss": lambda p: poptorch.optim.AdamW(p, lr=0.01, loss_scaling=64.0),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "LAMB": lambda p: poptorch.optim.LAMB(p, lr=0.01, weight_decay=0.1),
    "clipped": lambda p: poptorch.optim.AdamW(p, lr=0.01, max_grad_norm=0.1),
    "RMSprop": lambda p: poptorch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}
IN_CI = ("Adam", "scaled loss")


@pytest.mark.parametrize(
    "name", [n if n in IN_CI else pytest.param(n, marks=pytest.mark.slow) for n in OPTIMIZERS]
)
def test_optimizers(name: str) -> None:
    pair = training_pair(OPTIMIZERS[name], deviceIterations=2)

    pair.check(*batch(2), calls=4)

    assert runs_natively(pair.native)
    native, reference = (e._update.bound.state.values() for e in (pair.native, pair.reference))
    for ours, expected in zip(native, reference, strict=True):
        assert_close(dict(ours), dict(expected))


class Half(Net):
    """Weights in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.half()

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None):
        return super().forward(x.half(), labels)


@pytest.mark.slow
def test_weights_in_half_precision() -> None:
    pair = training_pair(model=Half, deviceIterations=2)

    for _ in range(4):
        results, expected = pair.native(*batch(2)), pair.reference(*batch(2))
        assert_close(results, expected, rtol=2e-3, atol=1e-3)

    assert runs_natively(pair.native)
    assert pair.native.model.first.weight.dtype is torch.float16


@pytest.mark.slow
def test_autocast_is_part_of_the_program() -> None:
    pair = training_pair(deviceIterations=2)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(4):
            results, expected = pair.native(*batch(2)), pair.reference(*batch(2))
            assert_close(results, expected, rtol=1e-2, atol=1e-2)

    assert runs_natively(pair.native)


def test_a_rule_that_changes_at_some_step(compilations: Compilations) -> None:
    """RAdam rectifies from its sixth step on: a branch of Python that reads the step count."""
    pair = training_pair(lambda p: torch.optim.RAdam(p, lr=0.01), deviceIterations=4)

    pair.check(*batch(4), calls=3)

    assert runs_natively(pair.native)
    assert compilations.used == 2


def test_a_learning_rate_changes_without_compiling(compilations: Compilations) -> None:
    pair = training_pair()
    x, labels = batch()

    for lr in (0.1, 0.5, 0.0, 0.01):
        for executor in (pair.native, pair.reference):
            executor._control.optimizer.param_groups[0]["lr"] = lr
        pair.check(x, labels, calls=2)

    assert compilations.used == 1


def test_a_scheduler_and_set_optimizer_compile_nothing() -> None:
    pair = training_pair(deviceIterations=2)
    pair.check(*batch(2))
    schedules = [
        torch.optim.lr_scheduler.StepLR(e._control.optimizer, 1, gamma=0.5)
        for e in (pair.native, pair.reference)
    ]

    for _ in range(3):
        pair.check(*batch(2))
        for executor, schedule in zip((pair.native, pair.reference), schedules, strict=True):
            schedule.step()
            executor.setOptimizer(executor._control.optimizer)
    for executor in (pair.native, pair.reference):
        executor.setOptimizer(momentum(executor.model.parameters()))
    pair.check(*batch(2), calls=2)

    assert runs_natively(pair.native)
    assert len({entry.key for entry in pair.native._native.entries()}) == 1


def test_another_optimizer_is_compiled_and_used(compilations: Compilations) -> None:
    pair = training_pair(deviceIterations=2)
    pair.check(*batch(2))

    for executor in (pair.native, pair.reference):
        executor.setOptimizer(torch.optim.Adam(executor.parameters(), lr=0.01, weight_decay=0.1))
    pair.check(*batch(2), calls=3)

    assert compilations.used == 2


def test_buffers_of_replicas() -> None:
    pair = training_pair(
        model=Normed,
        accumulation=2,
        replicationFactor=2,
        deviceIterations=2,
        outputMode=OutputMode.All,
        broadcastBuffers=False,
    )

    pair.check(*batch(8), calls=3)

    assert runs_natively(pair.native)
    assert pair.native.model.norm.num_batches_tracked == 12


def test_strict_mode_keeps_weights_on_the_device() -> None:
    pair = training_pair(deviceIterations=2, strict=True)
    x, labels = batch(2)

    for _ in range(3):
        assert_close(pair.native(x, labels), pair.reference(x, labels))
    assert runs_natively(pair.native)
    pair.check_state()
    for executor in (pair.native, pair.reference):
        with torch.no_grad():
            executor.model.first.weight.zero_()
        executor.copyWeightsToDevice()
    pair.check(x, labels, calls=2)


EDITS: dict[str, Callable[[torch.nn.Module], object]] = {
    "in place": lambda model: model.first.weight.data.mul_(0.5),
    "param.data": lambda model: setattr(model.first.weight, "data", torch.ones(6, 4)),
    "load_state_dict": lambda model: model.load_state_dict(
        {name: torch.full_like(value, 0.1) for name, value in model.state_dict().items()}
    ),
    "requires no copy": lambda model: model.second.bias.data.copy_(torch.arange(3.0)),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_edits_of_the_host_are_seen(
    edit: Callable[[torch.nn.Module], object], compilations: Compilations
) -> None:
    pair = training_pair(deviceIterations=2)
    pair.check(*batch(2), calls=3)

    for executor in (pair.native, pair.reference):
        edit(executor.model)
    pair.check(*batch(2), calls=3)

    assert runs_natively(pair.native)
    assert compilations.used == 1


def test_inference_shares_the_weights_that_are_trained() -> None:
    pair = training_pair()
    x, labels = batch()
    infer = poptorch.inferenceModel(pair.native.model, options())

    for _ in range(3):
        pair.check(x, labels)
        with torch.no_grad():
            assert_close(infer(x), pair.native.model(x))

    assert runs_natively(infer)


def test_two_signatures_live_side_by_side() -> None:
    pair = training_pair()

    for rows in (4, 2, 4, 2, 4):
        pair.check(*batch(rows=rows))

    assert len(pair.native._native.entries()) == 2


def test_an_optimizer_loaded_from_a_file_goes_on() -> None:
    pair = training_pair(deviceIterations=2)
    pair.check(*batch(2), calls=2)

    for executor in (pair.native, pair.reference):
        optimizer = executor._control.optimizer
        optimizer.load_state_dict(optimizer.state_dict())
    pair.check(*batch(2), calls=2)

    assert runs_natively(pair.native)


def test_equal_runs_give_equal_bits() -> None:
    runs = []
    for _ in range(2):
        model = seeded()
        step = poptorch.trainingModel(
            model, options(deviceIterations=3), momentum(model.parameters())
        )
        runs.append([step(*batch(3))[1] for _ in range(3)] + list(model.parameters()))

    assert all(map(torch.equal, *runs))


def test_pair_is_of_two_engines() -> None:
    pair: Pair = training_pair()

    assert pair.native.options.engine_name == "native"
    assert pair.reference.options.engine_name == "reference"
