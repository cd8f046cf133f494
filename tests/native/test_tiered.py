"""The tiered engine: runs at once, and natively as soon as the native code is there."""

from __future__ import annotations

from typing import Any

import torch
from tests.native.runs import (
    Compilations,
    Net,
    Pair,
    batch,
    momentum,
    options,
    runs_natively,
    seeded,
)
from tests.native.test_engine import printed

import poptorch


def tiered_pair(**setters: Any) -> Pair:
    made = []
    for engine in ("tiered", "reference"):
        model = seeded(Net)
        chosen = options(engine, **setters)
        made.append(poptorch.trainingModel(model, chosen, momentum(model.parameters())))
    return Pair(*made)


def wait_for_compilation(executor: poptorch.PoplarExecutor) -> None:
    """Until everything that was begun in the background is compiled."""
    for pending in list(executor._native._pending.values()):
        pending.result(timeout=250)


def test_steps_run_before_and_after_the_switch() -> None:
    pair = tiered_pair(deviceIterations=2)

    pair.check(*batch(2), calls=3)  # on the reference engine, or not any more: nobody knows
    wait_for_compilation(pair.native)
    pair.check(*batch(2), calls=3)

    assert runs_natively(pair.native)


def test_the_first_call_does_not_wait() -> None:
    model = poptorch.inferenceModel(seeded(Net).eval(), options("tiered", deviceIterations=2))
    x = torch.randn(2 * 7, 4)  # of a shape that no other test compiles

    out = model(x)

    assert not runs_natively(model)
    assert torch.equal(out, torch.cat([model.model(part) for part in x.split(7)]))
    assert model._native._pending
    wait_for_compilation(model)


def test_a_program_that_cannot_be_compiled_stays_where_it_is(compilations: Compilations) -> None:
    from tests.native.runs import Pass

    model = poptorch.inferenceModel(Pass(printed), options("tiered"))
    x = batch()[0]

    for _ in range(3):
        assert torch.equal(model(x), x * 2 + 1)
        wait_for_compilation(model)

    assert len(compilations.warnings) == 1
    assert not runs_natively(model)


def test_destroying_while_a_compilation_runs_is_harmless() -> None:
    pair = tiered_pair()
    pair.check(*batch())
    pending = list(pair.native._native._pending.values())

    for executor in (pair.native, pair.reference):
        executor.destroy()
    pair.check(*batch(), calls=2)

    for future in pending:
        assert future.result(timeout=250) is not None  # nobody takes it any more
    wait_for_compilation(pair.native)
