"""Parameters and buffers in a captured forward: tied, frozen, written, rebound, viewed."""

from __future__ import annotations

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

import poptorch
from pantile.errors import CaptureError


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, 7, shape)


class TiedLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(7, 4)
        self.mix = nn.Linear(4, 4)
        self.lm_head = nn.Linear(4, 7, bias=False)
        self.lm_head.weight = self.emb.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        logits = self.lm_head(self.mix(self.emb(ids)))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def test_tied_weights_get_the_sum_of_their_gradients_and_stay_tied() -> None:
    model = TiedLanguageModel()

    trains_like_eager(model, (tokens(2, 3), tokens(2, 3)))

    assert model.lm_head.weight is model.emb.weight


class OneParameterTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shared = nn.Parameter(torch.randn(3, 3))
        self.first = shared
        self.second = shared

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.first @ self.second).square().mean()


def test_one_parameter_under_two_names_is_one_state() -> None:
    model = OneParameterTwice()

    trains_like_eager(model, (torch.randn(2, 3),))

    assert model.first is model.second


def test_a_submodule_used_twice_is_trained_once_with_both_gradients() -> None:
    layer = nn.Linear(3, 3)

    trains_like_eager(nn.Sequential(layer, nn.ReLU(), layer, MeanSquare()), (torch.randn(4, 3),))


class MeanSquare(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean()


def test_frozen_parameters_keep_every_bit() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), MeanSquare())
    model[0].requires_grad_(False)
    before = state_of(model)

    trains_like_eager(model, (torch.randn(5, 3),))

    assert changed(before, model) == ["2.weight", "2.bias"]


def test_a_parameter_that_forward_does_not_use_keeps_every_bit() -> None:
    model = nn.Sequential(nn.Linear(3, 3), MeanSquare())
    model.unused = nn.Parameter(torch.randn(2))
    before = state_of(model)

    trains_like_eager(
        model, (torch.randn(2, 3),), optimizer=lambda p: torch.optim.Adam(p, weight_decay=0.1)
    )

    assert "unused" not in changed(before, model)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return ((x - self.mean) * self.scale).square().mean() * self.count


def test_buffers_written_in_place_count_every_run() -> None:
    model = Counting()

    trains_like_eager(model, (torch.randn(4, 3),), (torch.randn(4, 3),))

    assert model.count == 6


class Rebinding(nn.Module):
    buf: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.register_buffer("buf", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.buf = self.buf + 1
        return (x * self.w * self.buf).sum()


def test_a_rebound_buffer_gets_the_new_value_as_in_eager() -> None:
    model = Rebinding()

    trains_like_eager(model, (torch.randn(2),))

    assert model.buf.tolist() == [3.0, 3.0]


def test_a_rebound_buffer_is_an_error_in_strict_mode() -> None:
    model = Rebinding()
    executor = poptorch.trainingModel(model, poptorch.Options().strict())

    with pytest.raises(poptorch.Error, match="Buffer buf is reassigned within the model") as caught:
        executor(torch.randn(2))

    assert "copy_" in str(caught.value)


class RebindingBadly(nn.Module):
    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.register_buffer("buf", torch.zeros(2))
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        self.buf = x[: self.value.numel()].to(self.value.dtype)
        return x + 1


@pytest.mark.parametrize(
    ("value", "what"), [(torch.zeros(3), "shape"), (torch.zeros(2, dtype=torch.int32), "int32")]
)
def test_a_buffer_rebound_to_another_shape_or_dtype_is_an_error(value: Tensor, what: str) -> None:
    with pytest.raises(CaptureError, match=rf"Buffer buf .*{what}"):
        poptorch.inferenceModel(RebindingBadly(value))(torch.randn(4))


class Removing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("y", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        result = x + self.y
        del self.y
        return result


def test_a_buffer_that_forward_removes_is_an_error_and_stays() -> None:
    model = Removing()

    with pytest.raises(poptorch.Error, match="Buffer y is removed from the model"):
        poptorch.inferenceModel(model)(torch.ones(2))

    assert model.y.tolist() == [0.0, 0.0]


class SettingToNone(Removing):
    def forward(self, x: Tensor) -> Tensor:
        self.y = None
        return x + 1


def test_a_buffer_set_to_none_is_an_error() -> None:
    with pytest.raises(poptorch.Error, match="Buffer y is removed from the model"):
        poptorch.inferenceModel(SettingToNone())(torch.ones(2))


class RebindingAParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        loss = (x * self.w).sum()
        del self.w
        self.w = nn.Parameter(torch.zeros(2))
        return loss


def test_a_rebound_parameter_is_an_error_in_strict_mode() -> None:
    executor = poptorch.trainingModel(RebindingAParameter(), poptorch.Options().strict())

    with pytest.raises(poptorch.Error, match="Parameter w is reassigned within the model"):
        executor(torch.randn(2))


class SwappingBuffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.tensor([1.0]))
        self.register_buffer("b", torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        self.a, self.b = self.b, self.a
        return x + self.a


def test_two_buffers_that_forward_swaps_are_swapped() -> None:
    infers_like_eager(SwappingBuffers(), (torch.zeros(1),))


WRITES = {
    "select": lambda b, x: b.select(0, 1).add_(x[0, 0]),
    "slice": lambda b, x: b[1:3].mul_(2).add_(x[0]),
    "slice with a step": lambda b, x: b[::2].add_(1),
    "narrow": lambda b, x: b.narrow(1, 0, 2).copy_(x[:, :2]),
    "transpose": lambda b, x: b.t().add_(x.t()),
    "diagonal": lambda b, x: b.diagonal().add_(x[0, 0]),
    "view": lambda b, x: b.view(-1)[3:5].zero_(),
    "flatten of a reshape": lambda b, x: b.reshape(2, 8)[1].fill_(7),
    "split": lambda b, x: b.split(2)[1].sub_(x[:2]),
    "unbind": lambda b, x: b.unbind(0)[2].copy_(x[0]),
    "squeeze": lambda b, x: b.unsqueeze(0).squeeze(0).add_(1),
    "expand of a select": lambda b, x: b[0].unsqueeze(0).add_(1),
    "index put": lambda b, x: b.__setitem__(torch.tensor([0, 2]), x[:2]),
    "boolean mask": lambda b, x: b.__setitem__(x > 0, 0.0),
    "item assignment": lambda b, x: b.__setitem__((slice(None), 1), x[:, 0]),
    "scatter": lambda b, x: b.scatter_(0, torch.zeros(1, 4, dtype=torch.long), x),
    "masked fill": lambda b, x: b.masked_fill_(x > 0, -1.0),
    "movedim": lambda b, x: b.movedim(0, 1)[0].add_(x[0]),
}


# Autograd itself refuses to differentiate through these.
MULTIPLE_VIEWS = {"split", "unbind"}


class WritingThroughAView(nn.Module):
    def __init__(self, write: str) -> None:
        super().__init__()
        self.write = write
        self.w = nn.Parameter(torch.ones(4))
        self.register_buffer("buf", torch.arange(16.0).view(4, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        whole = self.buf.view(16)
        WRITES[self.write](self.buf, x)
        temporary = x * self.w
        if self.write not in MULTIPLE_VIEWS:
            WRITES[self.write](temporary, x)
        return temporary + whole.sum(), (temporary.square() * self.buf).mean()


@pytest.mark.parametrize("write", WRITES)
def test_writes_through_views_reach_buffers_and_temporaries(write: str) -> None:
    trains_like_eager(WritingThroughAView(write), (torch.randn(4, 4),))


@pytest.mark.parametrize("write", WRITES)
def test_writes_through_views_reach_the_callers_tensor(write: str) -> None:
    class WritingToTheInput(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            WRITES[write](x, y)
            return x * 2

    infers_like_eager(WritingToTheInput(), (torch.randn(4, 4), torch.randn(4, 4)))


class UpdatingAParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3))
        self.average = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.w.clamp_(-0.5, 0.5)
            self.average.lerp_(self.w, 0.1)
        return (x * self.w - self.average).square().mean()


def test_parameters_written_under_no_grad_are_state_too() -> None:
    trains_like_eager(UpdatingAParameter(), (torch.randn(4, 3),))


class SideDoors(nn.Module):
    """Parameters that forward reaches past the module's tables."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])
        self.many = nn.ParameterList([torch.randn(3) for _ in range(2)])
        self.named = nn.ParameterDict({"a": torch.randn(3)})
        self.plain = [layer.weight for layer in self.layers]
        self.table = {"bias": self.layers[0].bias}

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.plain:
            x = torch.tanh(F.linear(x, weight, self.table["bias"]))
        return (x * self.many[0] + self.many[1] @ self.named["a"]).square().sum()


def test_parameters_in_lists_and_dicts_are_trained() -> None:
    model = SideDoors()
    twin = SideDoors()
    twin.load_state_dict(model.state_dict())
    x = torch.randn(2, 3)
    executor = poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.1))
    eager = torch.optim.SGD(twin.parameters(), lr=0.1)

    for _ in range(3):
        loss = executor(x)
        expected = twin(x)
        eager.zero_grad()
        expected.backward()
        eager.step()

    assert torch.equal(loss, expected)
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_parameter_held_by_a_closure_is_trained() -> None:
    model = nn.Module()
    model.w = nn.Parameter(torch.tensor([2.0]))
    weight = model.w
    model.forward = lambda x: (weight * x).sum()  # type: ignore[method-assign]
    executor = poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.5))

    executor(torch.tensor([3.0]))

    assert model.w.item() == 2.0 - 0.5 * 3.0


def test_two_parameters_that_share_memory_are_refused() -> None:
    model = nn.Module()
    whole = torch.zeros(4)
    model.a, model.b = nn.Parameter(whole[:3]), nn.Parameter(whole[1:])
    model.forward = lambda x: (x * model.a).sum()  # type: ignore[method-assign]

    with pytest.raises(CaptureError, match="'b' shares memory with 'a'"):
        poptorch.trainingModel(model)(torch.ones(3))
