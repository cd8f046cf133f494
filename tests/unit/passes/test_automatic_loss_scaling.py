"""The loss scale doubles while gradients are small, halves when they are large (spec 2.6)."""

from __future__ import annotations

import pytest
import torch
from tests.unit.program.builder import Builder, aten, run

from pantile.passes.automatic_loss_scaling import ScalingRule, automatic_loss_scaling
from pantile.program.program import Program
from pantile.program.spec import InputKind, OutputKind
from pantile.program.verify import verify

INF, NAN = float("inf"), float("nan")


def update() -> Program:
    """w <- w - g / scale; returns the gradient as new state."""
    build = Builder("update")
    w = build.input("w", (3,), InputKind.PARAMETER)
    g = build.input("g", (3,), InputKind.GRADIENT)
    scale = build.input("loss_scaling", (), InputKind.HYPER)
    unscaled = build.call(aten.div.Tensor, g, scale)
    new = build.call(aten.sub.Tensor, w, unscaled)
    build.write(w, new)
    build.returns("momentum/w", unscaled, OutputKind.OPTIMIZER)
    return build.finish()


def after(gradient, scale=8.0, rule=None, summed=1, count=None):
    program = automatic_loss_scaling(update(), rule or ScalingRule(), ["g"], summed=summed)
    verify(program)
    weights, held = torch.ones(3), torch.tensor(scale)
    more = [] if count is None else [torch.tensor(float(count))]
    state = run(program, weights, torch.tensor(gradient), held, *more)[0]
    return weights.tolist(), float(held), state.tolist()


def test_small_gradients_double_the_scale_and_are_applied():
    weights, scale, state = after([8.0, 16.0, 0.0])

    assert weights == [0.0, -1.0, 1.0]
    assert scale == 16.0
    assert state == [1.0, 2.0, 0.0]


def test_a_gradient_above_an_eighth_of_the_largest_half_halves_it_and_is_applied():
    weights, scale, _ = after([65504.0 / 8 + 8, 0.0, 0.0])

    assert scale == 4.0
    assert weights[0] == pytest.approx(1 - (65504 / 8 + 8) / 8)


def test_a_gradient_just_below_the_edge_does_not():
    assert after([65504.0 / 8, 0.0, 0.0])[1] == 16.0


def test_sums_of_several_gradients_may_be_as_many_times_larger():
    assert after([65504.0 / 8 + 8, 0.0, 0.0], summed=2)[1] == 16.0


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
def test_what_is_not_finite_halves_the_scale_and_changes_nothing_else(bad):
    weights, scale, state = after([1.0, bad, 1.0])

    assert weights == [1.0, 1.0, 1.0]
    assert scale == 4.0
    assert state == [0.0, 0.0, 0.0]


def test_the_scale_stays_within_what_half_holds():
    assert after([0.0] * 3, scale=2.0**15)[1] == 2.0**15
    assert after([NAN] * 3, scale=2.0**-14)[1] == 2.0**-14


def test_with_a_period_the_scale_changes_at_the_first_update_and_then_every_so_often():
    scales = [after([0.0] * 3, rule=ScalingRule(period=2), count=i)[1] for i in range(4)]

    assert scales == [16.0, 8.0, 16.0, 8.0]


def test_a_share_of_large_gradients_may_be_tolerated():
    rule = ScalingRule(share=0.5)

    assert after([9000.0, 0.0, 0.0], rule=rule)[1] == 16.0
    assert after([9000.0, 9000.0, 0.0], rule=rule)[1] == 4.0


def test_without_half_gradients_the_update_is_left_alone():
    program = update()

    assert automatic_loss_scaling(program, ScalingRule(), [], summed=1) is program
