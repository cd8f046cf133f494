"""Which tensor is trained: marked, recognised, returned, or none at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.unit.capture.against_eager import changed, state_of, trains_like_eager
from torch import Tensor, nn

import poptorch
from pantile.errors import LossError

X = torch.randn(5, 3)
Y = torch.tensor([0, 1, 1, 0, 1])
Forward = Callable[[nn.Module, Tensor, Tensor], Any]


class Classifier(nn.Module):
    """Two linear layers; what forward returns is chosen by the test."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.other = nn.Linear(3, 2)
        self._forward = forward

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self._forward(self, x, y)


def strict() -> poptorch.Options:
    return poptorch.Options().strict()


def nll(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.nll_loss(F.log_softmax(m.fc(x), 1), y)


def regularised(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(m.fc(x), y) + 0.1 * m.other.weight.square().sum()


def sum_of_two(m: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    out = m.fc(x)
    total = F.cross_entropy(out, y) + F.mse_loss(m.other(x), torch.zeros(5, 2))
    return out, total


AS_RETURNED: dict[str, Forward] = {
    "the loss": nll,
    "five times the loss": lambda m, x, y: 5 * nll(m, x, y),
    "loss and penalty": regularised,
    "a sum of two losses": sum_of_two,
    "a loss among outputs": lambda m, x, y: {"logits": m.fc(x), "loss": nll(m, x, y)},
    "a loss built from another": lambda m, x, y: F.mse_loss(nll(m, x, y), torch.tensor(0.3)),
    "a scalar made by hand": lambda m, x, y: (m.fc(x) - m.other(x)).abs().mean(),
    "a scalar next to a matrix": lambda m, x, y: (m.fc(x), m.fc(x).square().mean()),
    "a module's loss": lambda m, x, y: nn.CrossEntropyLoss(label_smoothing=0.1)(m.fc(x), y),
    "a weighted loss": lambda m, x, y: F.cross_entropy(m.fc(x), y, weight=torch.tensor([0.2, 0.8])),
    "a marked sum": lambda m, x, y: poptorch.identity_loss(regularised(m, x, y), reduction="none"),
}


@pytest.mark.parametrize("kind", AS_RETURNED)
def test_what_forward_returns_is_what_is_trained(kind: str) -> None:
    trains_like_eager(Classifier(AS_RETURNED[kind]), (X, Y))


def test_five_times_the_loss_moves_the_weights_five_times_as_far() -> None:
    moved = []
    for factor in (1, 5):
        torch.manual_seed(3)
        model = Classifier(lambda m, x, y, f=factor: f * nll(m, x, y))
        before = model.fc.weight.detach().clone()
        poptorch.trainingModel(model, None, torch.optim.SGD(model.parameters(), lr=0.01))(X, Y)
        moved.append(model.fc.weight.detach() - before)

    assert torch.allclose(moved[1], 5 * moved[0], atol=1e-6)


def test_strict_mode_trains_the_inner_loss_as_poptorch_does() -> None:
    weights = []
    for forward, options in (
        (lambda m, x, y: 5 * nll(m, x, y), strict()),
        (nll, poptorch.Options()),
    ):
        torch.manual_seed(3)
        model = Classifier(forward)
        executor = poptorch.trainingModel(
            model, options, poptorch.optim.SGD(model.parameters(), lr=0.01)
        )
        executor(X, Y)
        weights.append(model.fc.weight.detach().clone())

    assert torch.equal(*weights)


def test_identity_loss_trains_the_total_in_strict_mode() -> None:
    def marked(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return poptorch.identity_loss(5 * nll(m, x, y), reduction="none")

    weights = []
    for forward, options in ((marked, strict()), (AS_RETURNED["five times the loss"], None)):
        torch.manual_seed(3)
        model = Classifier(forward)
        executor = poptorch.trainingModel(
            model, options, poptorch.optim.SGD(model.parameters(), lr=0.01)
        )
        executor(X, Y)
        weights.append(model.fc.weight.detach().clone())

    assert torch.equal(*weights)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_identity_loss_reduces_and_trains_the_reduced_value(reduction: str) -> None:
    def marked(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(m.fc(x), y, reduction="none")
        return poptorch.identity_loss(each, reduction=reduction)

    trains_like_eager(Classifier(marked), (X, Y))


def test_a_loss_without_reduction_gets_a_gradient_of_ones() -> None:
    def each(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(m.fc(x), y, reduction="none")

    trains_like_eager(Classifier(each), (X, Y), loss=lambda result: result.sum())


def test_the_last_marked_loss_wins_over_recognised_ones() -> None:
    def marked(m: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        reported = F.mse_loss(m.other(x), torch.zeros(5, 2))
        return reported, poptorch.identity_loss(nll(m, x, y), reduction="mean")

    model = Classifier(marked)
    before = state_of(model)

    trains_like_eager(model, (X, Y))

    assert changed(before, model) == ["fc.weight", "fc.bias"]


def test_a_loss_and_reports_made_of_it_train_the_loss() -> None:
    def reporting(m: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        loss = nll(m, x, y)
        return loss.exp(), loss

    trains_like_eager(Classifier(reporting), (X, Y))


def test_a_loss_that_is_not_returned_is_trained_all_the_same() -> None:
    def hidden(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        nll(m, x, y)
        return m.fc(x).argmax(1)

    model, shown = Classifier(hidden), Classifier(nll)
    shown.load_state_dict(model.state_dict())

    result = poptorch.trainingModel(model)(X, Y)
    poptorch.trainingModel(shown)(X, Y)

    assert result.dtype == torch.int64
    assert torch.equal(model.fc.weight, shown.fc.weight)


def test_forward_that_returns_nothing_trains_the_loss_it_computed() -> None:
    model = Classifier(lambda m, x, y: (nll(m, x, y), None)[1])
    before = state_of(model)

    assert poptorch.trainingModel(model)(X, Y) is None
    assert changed(before, model) == ["fc.weight", "fc.bias"]


def test_a_frozen_model_runs_and_changes_nothing() -> None:
    model = Classifier(nll).requires_grad_(False)
    before = state_of(model)

    loss = poptorch.trainingModel(model)(X, Y)

    assert torch.equal(loss, nll(model, X, Y))
    assert changed(before, model) == []


def test_a_model_without_parameters_runs() -> None:
    class Distance(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return F.mse_loss(x.sum(1), y.float())

    assert torch.equal(poptorch.trainingModel(Distance())(X, Y), Distance()(X, Y))


NO_LOSS: dict[str, Forward] = {
    "logits only": lambda m, x, y: m.fc(x),
    "two scalars": lambda m, x, y: (m.fc(x).sum(), m.other(x).mean()),
    "an integer": lambda m, x, y: m.fc(x).argmax(),
    "nothing": lambda m, x, y: None,
}


@pytest.mark.parametrize("kind", NO_LOSS)
def test_a_model_without_a_loss_is_refused(kind: str) -> None:
    with pytest.raises(LossError, match="find a loss") as caught:
        poptorch.trainingModel(Classifier(NO_LOSS[kind]))(X, Y)

    assert "identity_loss" in (caught.value.fix or "")


def test_strict_mode_needs_a_recognised_or_marked_loss() -> None:
    by_hand = AS_RETURNED["a scalar made by hand"]

    with pytest.raises(poptorch.Error, match="find a loss in graph"):
        poptorch.trainingModel(Classifier(by_hand), strict())(X, Y)


def two_losses(m: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return nll(m, x, y), F.mse_loss(m.other(x), torch.zeros(5, 2))


@pytest.mark.parametrize("options", [None, strict()])
def test_two_independent_losses_are_refused(options: poptorch.Options | None) -> None:
    with pytest.raises(LossError, match="Multiple independent losses found") as caught:
        poptorch.trainingModel(Classifier(two_losses), options)(X, Y)

    assert "identity_loss" in (caught.value.fix or "")


def test_strict_mode_refuses_a_sum_of_two_losses_that_is_not_marked() -> None:
    with pytest.raises(LossError, match="Multiple independent losses found"):
        poptorch.trainingModel(Classifier(sum_of_two), strict())(X, Y)


def test_an_inference_model_needs_no_loss() -> None:
    model = Classifier(NO_LOSS["logits only"])

    assert torch.equal(poptorch.inferenceModel(model)(X, Y), model.fc(X))


RECOGNISED: dict[str, Callable[[Tensor], Tensor]] = {
    "l1": lambda o: F.l1_loss(o, torch.zeros_like(o)),
    "smooth l1": lambda o: F.smooth_l1_loss(o, torch.zeros_like(o)),
    "huber": lambda o: F.huber_loss(o, torch.zeros_like(o)),
    "bce": lambda o: F.binary_cross_entropy(o.sigmoid(), torch.ones_like(o)),
    "bce with logits": lambda o: F.binary_cross_entropy_with_logits(o, torch.ones_like(o)),
    "kl div": lambda o: F.kl_div(o.log_softmax(1), torch.full_like(o, 0.5), reduction="sum"),
    "poisson": lambda o: F.poisson_nll_loss(o, torch.ones_like(o)),
    "hinge": lambda o: F.hinge_embedding_loss(o, torch.ones_like(o)),
    "soft margin": lambda o: F.soft_margin_loss(o, torch.ones_like(o)),
    "multilabel soft margin": lambda o: F.multilabel_soft_margin_loss(o, torch.ones_like(o)),
    "cosine": lambda o: F.cosine_embedding_loss(o, o + 1, torch.ones(5)),
    "margin ranking": lambda o: F.margin_ranking_loss(o[:, 0], o[:, 1], torch.ones(5)),
    "triplet": lambda o: F.triplet_margin_loss(o, o.detach() * 2, o * o),
    "ctc": lambda o: F.ctc_loss(
        o.log_softmax(1).unsqueeze(1),
        torch.ones(1, 2, dtype=torch.long),
        torch.tensor([5]),
        torch.tensor([2]),
    ),
}


@pytest.mark.parametrize("kind", RECOGNISED)
def test_the_losses_of_the_library_are_recognised_in_strict_mode(kind: str) -> None:
    model = Classifier(lambda m, x, y: (m.fc(x), RECOGNISED[kind](m.fc(x))))
    before = state_of(model)

    executor = poptorch.trainingModel(model, strict())
    executor(X, Y)

    assert "fc.weight" in changed(before, model)
