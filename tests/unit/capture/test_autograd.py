"""Autograd inside a captured forward: detach, hooks, custom functions, second derivatives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.unit.capture.against_eager import (
    changed,
    infers_like_eager,
    state_of,
    trains_like_eager,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import poptorch


class TwoTowers(nn.Module):
    """Two layers and a loss; subclasses choose what happens between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = nn.Linear(3, 3)

    def between(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self.a(x))).square().mean()


X = torch.randn(4, 3)


def test_nothing_in_front_of_a_detach_is_trained() -> None:
    class Detached(TwoTowers):
        def between(self, h: Tensor) -> Tensor:
            return h.detach()

    model = Detached()
    before = state_of(model)

    trains_like_eager(model, (X,))

    assert changed(before, model) == ["b.weight", "b.bias"]


def test_nothing_inside_no_grad_is_trained() -> None:
    class NoGrad(TwoTowers):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                h = self.a(x)
                with torch.enable_grad():
                    scale = self.b.bias.sum()
            return (self.b(h) * scale).square().mean()

    model = NoGrad()
    before = state_of(model)

    trains_like_eager(model, (X,))

    assert changed(before, model) == ["b.weight", "b.bias"]


def test_a_no_grad_decorator_and_requires_grad_flags_are_honoured() -> None:
    class Decorated(TwoTowers):
        @torch.no_grad()
        def target(self, x: Tensor) -> Tensor:
            return self.a(x)

        def forward(self, x: Tensor) -> tuple[Tensor, bool, bool]:
            y, z = self.b(x), self.target(x)
            return F.mse_loss(y, z), y.requires_grad, z.requires_grad

    trains_like_eager(Decorated(), (X,))


def test_inference_records_nothing_even_if_forward_asks() -> None:
    class Asking(TwoTowers):
        def forward(self, x: Tensor) -> tuple[Tensor, bool]:
            y = self.a(x)
            return y, y.requires_grad

    infers_like_eager(Asking(), (X,))


class Cube(torch.autograd.Function):
    """x ** 3, with a gradient that is deliberately not the true one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, power: int, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.power = power
        return x**power * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient * x * weight * ctx.power, None, (gradient * x * 7).sum(0)


class CallingAFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return Cube.apply(self.fc(x), 3, self.weight).mean()


def test_a_custom_function_runs_its_own_backward() -> None:
    trains_like_eager(CallingAFunction(), (X,))


def test_a_custom_function_given_a_parameter_from_a_list_trains_it() -> None:
    class FromAList(CallingAFunction):
        def __init__(self) -> None:
            super().__init__()
            self.held = [self.weight]

        def forward(self, x: Tensor) -> Tensor:
            return Cube.apply(self.fc(x), 3, self.held[0]).mean()

    model, plain = FromAList(), CallingAFunction()
    plain.load_state_dict(model.state_dict())
    executor = poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.1))

    for _ in range(2):
        executor(X)
    trains_like_eager(plain, (X,), steps=2)

    for mine, expected in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, expected)


class Clamped(torch.autograd.Function):
    """The newer style: forward without ctx, several outputs, one not differentiable."""

    @staticmethod
    def forward(x: Tensor, low: float) -> tuple[Tensor, Tensor]:
        return x.clamp(min=low), x < low

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (below,) = ctx.saved_tensors
        return gradient.masked_fill(below, 0.25), None


def test_a_custom_function_with_setup_context_and_two_outputs() -> None:
    class Clamping(TwoTowers):
        def between(self, h: Tensor) -> Tensor:
            value, below = Clamped.apply(h, 0.1)
            return value + below

    trains_like_eager(Clamping(), (X,))


def test_a_custom_function_that_writes_in_place_marks_it_dirty() -> None:
    class Doubling(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 5

    class Dirty(TwoTowers):
        def between(self, h: Tensor) -> Tensor:
            return Doubling.apply(h + 0)

    trains_like_eager(Dirty(), (X,))


def test_a_hook_on_a_parameter_changes_its_gradient() -> None:
    model, twin = TwoTowers(), TwoTowers()
    twin.load_state_dict(model.state_dict())
    for each in (model, twin):
        each.a.weight.register_hook(lambda g: g.clamp(-0.01, 0.01) * 3)
    executor = poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)

    for _ in range(2):
        executor(X)
        optimizer.zero_grad()
        twin(X).backward()
        optimizer.step()

    for mine, expected in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, expected)
    assert len(model.a.weight._backward_hooks) == 1  # type: ignore[arg-type]


def test_a_hook_on_an_activation_changes_its_gradient() -> None:
    class Hooked(TwoTowers):
        def between(self, h: Tensor) -> Tensor:
            h.register_hook(lambda g: g * 2 + 1)
            return h.tanh()

    trains_like_eager(Hooked(), (X,))


def double_input(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(a * 2 for a in args)


def halve_output(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return output / 2


def scale_gradient(module: nn.Module, grad_in: Any, grad_out: Any) -> Any:
    return tuple(None if g is None else g * 3 for g in grad_in)


def scale_incoming(module: nn.Module, grad_out: Any) -> Any:
    return tuple(None if g is None else g + 0.1 for g in grad_out)


def test_module_hooks_run_in_forward_and_backward() -> None:
    model = TwoTowers()
    model.a.register_forward_pre_hook(double_input)
    model.a.register_forward_hook(halve_output)
    model.b.register_full_backward_hook(scale_gradient)
    model.b.register_full_backward_pre_hook(scale_incoming)

    trains_like_eager(model, (X,))


class GradientPenalty(TwoTowers):
    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            score = self.b(torch.tanh(self.a(x))).sum()
            (slope,) = torch.autograd.grad(score, x, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean() + score * 0.01


def test_a_gradient_with_respect_to_an_input_is_differentiated_again() -> None:
    trains_like_eager(GradientPenalty(), (X,))


def test_a_gradient_inside_forward_works_in_inference() -> None:
    class Forces(TwoTowers):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                energy = self.b(torch.tanh(self.a(x))).square().sum()
                return -torch.autograd.grad(energy, x)[0]

    infers_like_eager(Forces(), (X,))


class Checkpointed(nn.Module):
    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant
        self.first = nn.Linear(3, 3)
        self.block = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(self.block, self.first(x), use_reentrant=self.use_reentrant)
        return h.square().mean()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_blocks_with_dropout_train_like_eager(use_reentrant: bool) -> None:
    trains_like_eager(Checkpointed(use_reentrant=use_reentrant), (X,))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_sequential_trains_like_eager(use_reentrant: bool) -> None:
    class Chain(Checkpointed):
        def forward(self, x: Tensor) -> Tensor:
            h = checkpoint_sequential(
                self.block, 2, self.first(x), use_reentrant=self.use_reentrant
            )
            return h.square().mean()

    trains_like_eager(Chain(use_reentrant=use_reentrant), (X,))


def test_retained_gradients_and_leaf_copies_do_not_disturb_training() -> None:
    class Retaining(TwoTowers):
        def between(self, h: Tensor) -> Tensor:
            h.retain_grad()
            return h.clone()

    trains_like_eager(Retaining(), (X,))


def test_backward_called_inside_forward_is_an_error_that_says_what_to_do() -> None:
    class Impatient(TwoTowers):
        def forward(self, x: Tensor) -> Tensor:
            loss = super().forward(x)
            loss.backward()
            return loss

    model = Impatient()
    with pytest.raises(poptorch.Error, match="backward") as caught:
        poptorch.trainingModel(model)(X)

    assert caught.value.fix
    assert model.a.weight.grad is None


def test_strict_inference_has_gradients_while_it_is_recorded_as_eager_has():
    class Asks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(3, 2)

        def forward(self, x):
            y = poptorch.nop(self.fc(x))
            assert not y.is_leaf
            return y

    model = Asks()
    options = poptorch.Options().strict()
    x = torch.randn(4, 3)

    out = poptorch.inferenceModel(model, options)(x)

    assert torch.equal(out, model(x))
    assert not out.requires_grad
