"""Library modules and transforms inside a captured forward: RNNs, norms, control flow, autocast."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.unit.capture.against_eager import infers_like_eager, trains_like_eager
from torch import Tensor, nn
from torch._higher_order_ops.map import map as torch_map
from torch.func import functional_call, vmap
from torch.nn.utils import parametrizations, parametrize

import poptorch
from pantile.errors import CaptureError

X = torch.randn(4, 6)


class Loss(nn.Module):
    """Any module, and the mean square of what it returns."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Tensor) -> tuple[Any, Tensor]:
        result = self.inner(*args)
        return result, (result[0] if isinstance(result, tuple) else result).square().mean()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_train(kind: Any) -> None:
    layer = kind(6, 5, num_layers=2, bidirectional=True, dropout=0.5, batch_first=True)

    trains_like_eager(Loss(layer), (torch.randn(2, 2, 6),), steps=2)


def test_an_lstm_with_projection_and_given_state_trains() -> None:
    class WithState(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(6, 5, proj_size=2)
            self.h0 = nn.Parameter(torch.zeros(1, 2, 2))

        def forward(self, x: Tensor, c0: Tensor) -> Tensor:
            return self.lstm(x, (self.h0, c0))[0]

    trains_like_eager(Loss(WithState()), (torch.randn(3, 2, 6), torch.randn(1, 2, 5)))


def test_recurrent_cells_in_a_loop_train() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.zeros(x.shape[1], 4)
            for step in x:
                h = self.cell(step, h)
            return h

    trains_like_eager(Loss(Loop()), (torch.randn(3, 2, 6),))


RANDOM: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda h: F.dropout(h, 0.3),
    "feature dropout": lambda h: F.dropout1d(h.unsqueeze(0), 0.3).squeeze(0),
    "alpha dropout": lambda h: F.alpha_dropout(h, 0.3, training=True),
    "rand": lambda h: h * torch.rand(6),
    "rand_like": lambda h: h + torch.rand_like(h),
    "randn with a generator default": lambda h: h + torch.randn(h.shape),
    "randint": lambda h: h * torch.randint(0, 3, (6,)),
    "randperm": lambda h: h[:, torch.randperm(6)],
    "bernoulli": lambda h: h * torch.bernoulli(torch.full_like(h, 0.5)),
    "normal in place": lambda h: h + torch.empty(6).normal_(),
    "uniform in place": lambda h: h + torch.empty(6).uniform_(-1, 1),
    "multinomial": lambda h: h[:, torch.multinomial(torch.ones(6), 3)],
    "rrelu": lambda h: F.rrelu(h, training=True),
    "gumbel softmax": lambda h: F.gumbel_softmax(h),
    "distribution": lambda h: h + torch.distributions.Normal(h, 1.0).rsample(),
}


class Drawing(nn.Module):
    def __init__(self, draw: str) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return RANDOM[self.draw](self.fc(x)).square().mean()


@pytest.mark.parametrize("draw", RANDOM)
def test_random_ops_draw_the_numbers_eager_draws(draw: str) -> None:
    trains_like_eager(Drawing(draw), (X,), steps=2)


def old_weight_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


NORMS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "weight norm, parametrised": parametrizations.weight_norm,
    "spectral norm, parametrised": parametrizations.spectral_norm,
    "spectral norm, by hooks": nn.utils.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
}


@pytest.mark.parametrize("norm", NORMS)
def test_normalised_weights_train(norm: str) -> None:
    layer = NORMS[norm](nn.Linear(6, 6))

    trains_like_eager(Loss(layer), (X,), steps=2)


def test_weight_norm_by_hooks_trains() -> None:
    layers = []
    for _ in range(2):
        torch.manual_seed(1)
        layers.append(Loss(old_weight_norm(nn.Linear(6, 6))))
    model, twin = layers
    executor = poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)

    for _ in range(3):
        _, loss = executor(X)
        _, expected = twin(X)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()

    assert torch.equal(loss, expected)
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_parametrised_weight_of_the_users_own_trains() -> None:
    class Symmetric(nn.Module):
        def forward(self, w: Tensor) -> Tensor:
            return w.triu() + w.triu(1).transpose(-1, -2)

    layer = nn.Linear(6, 6)
    parametrize.register_parametrization(layer, "weight", Symmetric())

    trains_like_eager(Loss(layer), (X,))


class Cond(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        return torch.cond(x.sum() > 0, lambda a: a.sin() * 2, lambda a: a.cos(), (h,))


BOTH_WAYS = ((X.abs(),), (-X.abs(),))


def test_cond_takes_the_branch_of_each_run_in_inference() -> None:
    infers_like_eager(Cond(), *BOTH_WAYS)


def test_cond_takes_the_branch_of_each_run_in_training() -> None:
    trains_like_eager(Loss(Cond()), *BOTH_WAYS, steps=2)


def test_cond_over_a_weight_of_the_module_trains() -> None:
    class CondOverWeights(Cond):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda a: self.fc(a), lambda a: a * self.fc.bias, (x,))

    model = Loss(CondOverWeights())

    trains_like_eager(model, *BOTH_WAYS, steps=2)


class Halving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        count, h = torch.while_loop(
            lambda n, a: a.abs().max() > 0.1,
            lambda n, a: (n + 1, a / 2),
            (torch.zeros((), dtype=torch.int64), self.fc(x)),
        )
        return h, count


def test_while_loop_runs_as_long_as_each_run_needs() -> None:
    infers_like_eager(Halving(), (X,), (X * 100,))


class TrainedThroughALoop(Halving):
    detach = False

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        _, factor = torch.while_loop(
            lambda n, a: n < 3,
            lambda n, a: (n + 1, a / 2),
            (torch.zeros((), dtype=torch.int64), h.detach() if self.detach else h),
        )
        return (h * factor).square().mean()


def test_training_through_a_while_loop_is_refused_and_the_fix_works() -> None:
    model = TrainedThroughALoop()

    with pytest.raises(CaptureError, match="while_loop cannot be trained through") as caught:
        poptorch.trainingModel(model)(X)

    assert "test_modules.py" in caught.value.location
    assert "torch.while_loop" in caught.value.location
    assert "detach()" in (caught.value.fix or "")
    model = TrainedThroughALoop()
    model.detach = True
    trains_like_eager(model, (X,), steps=2)


class Mapping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return torch_map(lambda row, scale: row.tanh() * scale, self.fc(x), by)


def test_map_runs_in_inference_and_training() -> None:
    infers_like_eager(Mapping(), (X, torch.randn(6)))
    trains_like_eager(Loss(Mapping()), (X, torch.randn(6)))


def test_autocast_inside_forward_computes_in_bfloat16() -> None:
    class Autocast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3))

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = self.net(x)
            return logits, F.cross_entropy(logits.float(), y)

    trains_like_eager(Autocast(), (X, torch.tensor([0, 1, 2, 0])))


def test_autocast_around_the_call_is_seen_by_forward() -> None:
    layer = nn.Linear(6, 3)
    executor = poptorch.inferenceModel(layer)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = executor(X)
        expected = layer(X)

    assert result.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(result, expected)


def test_functional_call_and_vmap_inside_forward_train() -> None:
    class Ensemble(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(6, 3)
            self.weights = nn.Parameter(torch.randn(5, 3, 6))

        def forward(self, x: Tensor) -> Tensor:
            def call(weight: Tensor) -> Any:
                return functional_call(self.one, {"weight": weight}, (x,))

            return vmap(call)(self.weights)

    trains_like_eager(Loss(Ensemble()), (X,))


def test_per_sample_gradients_inside_forward_work() -> None:
    class Jacobian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return vmap(torch.func.jacrev(lambda row: self.fc(row).tanh()))(x)

    infers_like_eager(Jacobian(), (X,))


def test_a_compiled_submodule_is_recorded_like_a_plain_one() -> None:
    class Compiled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.compile(nn.Sequential(nn.Linear(6, 6), nn.GELU()), backend="eager")

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    plain = Loss(nn.Sequential(nn.Linear(6, 6), nn.GELU()))
    model = Loss(Compiled())
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        mine.data.copy_(theirs.data)
    executor = poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)

    for _ in range(2):
        _, loss = executor(X)
        _, expected = plain(X)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()

    assert torch.equal(loss, expected)


def scripted(module: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(module)


@pytest.mark.parametrize("where", ["top", "inside"])
def test_a_scripted_module_is_refused_by_name_and_the_plain_one_works(where: str) -> None:
    layer = nn.Linear(6, 6)
    model = scripted(layer) if where == "top" else nn.Sequential(nn.ReLU(), scripted(layer))

    with pytest.raises(poptorch.Error, match=r"torch\.jit") as caught:
        poptorch.inferenceModel(model)(X)

    assert "before" in (caught.value.fix or "")
    if where == "inside":
        assert "'1'" in caught.value.message
    assert torch.equal(poptorch.inferenceModel(layer)(X), layer(X))


def test_a_transformer_layer_with_dropout_trains() -> None:
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.1, batch_first=True)

    trains_like_eager(Loss(layer), (torch.randn(2, 3, 6),), steps=2)


def test_batch_norm_updates_its_statistics_like_eager() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())

    trains_like_eager(Loss(net), (torch.randn(2, 1, 5, 5),))


def test_a_weight_that_only_the_body_of_a_cond_holds_is_trained() -> None:
    class SideDoor(Cond):
        def __init__(self) -> None:
            super().__init__()
            self.held = [self.fc.weight]

        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda a: a @ self.held[0], lambda a: a.sin(), (x,))

    model = SideDoor()
    x, weight = X.abs(), model.fc.weight
    (gradient,) = torch.autograd.grad((x @ weight).square().mean(), weight)
    expected = weight.detach() - gradient

    poptorch.trainingModel(Loss(model), None, torch.optim.SGD([weight], lr=1.0))(x)

    assert torch.equal(weight, expected)
