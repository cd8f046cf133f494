"""Inference on the native engine: arguments, results and weights as on the reference engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.native.runs import (
    Net,
    Pass,
    assert_close,
    batch,
    inference_pair,
    options,
    runs_natively,
)
from torch import nn

import poptorch
from pantile.errors import InputMismatch
from poptorch.enums import OutputMode


class Structured(nn.Module):
    """Arguments and results of many kinds, one of them a parameter and one an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor, pair: Any = None) -> Any:
        y = self.layer(x) * scale
        first, second = pair["of"]
        return {
            "y": y,
            "list": [y.sum(), (first - second).long()],
            "x": x,
            "weight": self.layer.weight,
            "half": y.to(torch.bfloat16),
        }


def structured(rows: int) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(2)
    a, b, c = (torch.randn(rows, 4, generator=draw) for _ in range(3))
    return {"scale": a, "pair": {"of": (b * 9, c * 9)}}


@pytest.mark.parametrize(
    ("iterations", "replicas", "mode"),
    [
        (1, 1, (OutputMode.All,)),
        (3, 1, (OutputMode.All,)),
        (2, 3, (OutputMode.All,)),
        (4, 1, (OutputMode.EveryN, 2)),
        (3, 2, (OutputMode.Final,)),
        (3, 2, (OutputMode.Sum,)),
    ],
    ids=str,
)
def test_batching_in_every_output_mode(iterations: int, replicas: int, mode: tuple) -> None:
    pair = inference_pair(
        Net, deviceIterations=iterations, replicationFactor=replicas, outputMode=mode
    )

    pair.check(batch(iterations * replicas)[0], calls=3)

    assert runs_natively(pair.native)


def test_nested_arguments_and_results() -> None:
    pair = inference_pair(Structured, deviceIterations=2)
    x = batch(2)[0]

    pair.check(x, calls=3, **structured(8))

    assert runs_natively(pair.native)


def test_results_are_the_callers_own() -> None:
    pair = inference_pair(Structured, deviceIterations=2)
    x = batch(2)[0]
    for _ in range(2):
        first = pair.native(x, **structured(8))
    kept = {name: first[name].clone() for name in ("y", "x", "weight")}

    pair.native(x + 1, **structured(8))
    with torch.no_grad():
        pair.native.model.layer.weight.zero_()

    assert all(torch.equal(first[name], value) for name, value in kept.items())


def counted(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    total += x.sum(0, keepdim=True)
    return total * 2


def test_arguments_written_in_place_are_written() -> None:
    model = poptorch.inferenceModel(Pass(counted), options(deviceIterations=2))
    x, total = batch(2)[0], torch.zeros(2, 4)

    for calls in (1, 2, 3):
        out = model(x, total)
        assert_close(total, calls * x.reshape(2, 4, 4).sum(1))
        assert_close(out, total * 2)

    assert runs_natively(model)


def test_an_argument_that_is_not_contiguous_is_written_too() -> None:
    model = poptorch.inferenceModel(Pass(counted), options(deviceIterations=2))
    x, wide = batch(2)[0], torch.zeros(2, 8)

    for _ in range(2):
        model(x, wide[:, ::2])

    assert_close(wide[:, ::2], 2 * x.reshape(2, 4, 4).sum(1))
    assert not wide[:, 1::2].any()


def test_views_slices_and_other_memory_are_read_right() -> None:
    pair = inference_pair(Net)
    x = batch(4)[0]
    pair.check(x[:4])

    pair.check(x[8:12])
    pair.check(x[::4])
    pair.check(x[:4].t().contiguous().t())
    pair.check(x[:4].clone().requires_grad_())
    with torch.inference_mode():
        pair.check(x[4:8])


def test_a_wrong_argument_is_refused_before_anything_runs() -> None:
    model = poptorch.inferenceModel(Net(), options(pinSignature=True))
    x = batch()[0]
    for _ in range(2):
        model(x)

    with pytest.raises(InputMismatch, match="x"):
        model(x.double())
    with pytest.raises(InputMismatch, match="x"):
        model(x[:2])


def test_weights_edited_between_calls_are_seen() -> None:
    pair = inference_pair(Net)
    x = batch()[0]
    pair.check(x, calls=2)

    for executor in (pair.native, pair.reference):
        with torch.no_grad():
            executor.model.first.weight.mul_(2)
    pair.check(x)
    for executor in (pair.native, pair.reference):
        executor.model.second.weight.data = torch.ones(3, 6)
    pair.check(x, calls=2)

    assert runs_natively(pair.native)


def test_strict_mode_keeps_the_weights_of_the_upload() -> None:
    pair = inference_pair(Net, strict=True)
    x = batch()[0]
    pair.check(x, calls=2)

    for executor in (pair.native, pair.reference):
        with torch.no_grad():
            executor.model.first.weight.zero_()
    pair.check(x)
    for executor in (pair.native, pair.reference):
        executor.copyWeightsToDevice()
    pair.check(x, calls=2)

    assert runs_natively(pair.native)


def test_counters_are_measured() -> None:
    model = poptorch.inferenceModel(Net(), options(deviceIterations=3, logCycleCount=True))
    for _ in range(2):
        model(batch(3)[0])

    counters = model.getPerfCounters()

    assert runs_natively(model)
    assert model.cycleCount() > 0
    for stage in ("input", "input_complete", "output", "output_complete"):
        assert [len(times) for times in counters[stage]] == [3]
    shortest, longest, average = model.getLatency()
    assert 0 < shortest <= average <= longest < 1
