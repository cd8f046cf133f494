"""Python may ask for the value of what forward makes from constants, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import poptorch


class _Model(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def _branch_on_a_mask(x: torch.Tensor) -> torch.Tensor:
    mask = torch.full((4, 4), float("-inf")).triu(1)
    causal = torch.triu(torch.full_like(mask, float("-inf")), diagonal=1)
    return x.softmax(-1) if bool((mask == causal).all()) else x


def _item_after_a_write(x: torch.Tensor) -> torch.Tensor:
    table = torch.zeros(4, dtype=torch.long)
    table[1:].add_(2)
    return x * table.sum().item()


def _places_of_ones(x: torch.Tensor) -> torch.Tensor:
    mask = torch.arange(4) % 2 == 0
    return x[:, mask.nonzero().squeeze(-1)]


def _picked_by_a_mask_and_written(x: torch.Tensor) -> torch.Tensor:
    picked = torch.arange(4)[torch.arange(4) > 1]
    picked += 1
    return x * picked.sum().item() + picked.sum()


def _picked_by_places_and_written(x: torch.Tensor) -> torch.Tensor:
    picked = torch.arange(4)[torch.tensor([1, 2])]
    picked.add_(x[0, 0].long())
    return x * picked.sum()


def _literal(x: torch.Tensor) -> torch.Tensor:
    scale = torch.tensor([1.0, 3.0])
    scale[0] = 2.0
    return x * scale.prod().item()


def _like_the_input(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.ones_like(x).sum() == x.numel() else x


@pytest.mark.parametrize(
    "function",
    [
        _branch_on_a_mask,
        _item_after_a_write,
        _places_of_ones,
        _picked_by_a_mask_and_written,
        _picked_by_places_and_written,
        _literal,
        _like_the_input,
    ],
)
def test_values_made_of_constants_can_be_asked_for(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.randn(3, 4)

    got = poptorch.inferenceModel(_Model(function))(x)

    assert torch.equal(got, function(x))


def _item_of_an_overwritten_tensor(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(3, 4)
    total.view(-1).add_(x.view(-1))
    return x * total.sum().item()


def _item_of_empty_memory(x: torch.Tensor) -> torch.Tensor:
    return x * torch.empty(()).item()


def _branch_on_a_draw(x: torch.Tensor) -> torch.Tensor:
    return x if torch.rand([]) < 0.5 else x + 1


def _branch_on_a_changed_draw(x: torch.Tensor) -> torch.Tensor:
    draw = torch.rand([])
    draw.sub_(1)
    return x if draw < 0.0 else x + 1


@pytest.mark.parametrize(
    "function",
    [
        _item_of_an_overwritten_tensor,
        _item_of_empty_memory,
        _branch_on_a_draw,
        _branch_on_a_changed_draw,
    ],
)
def test_other_values_are_refused(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    model = poptorch.inferenceModel(_Model(function))

    with pytest.raises(poptorch.Error, match="asks for the value of a tensor"):
        model(torch.randn(3, 4))


@pytest.mark.parametrize("bound", [0.0, -1.0, 1.0, 2.0])
def test_a_uniform_draw_can_be_compared_with_what_it_never_reaches(bound: float) -> None:
    def layer_drop(x: torch.Tensor) -> torch.Tensor:
        draw = torch.rand([])
        return x * 2 if draw < bound else x * torch.rand([])

    x = torch.randn(3)
    model = poptorch.inferenceModel(_Model(layer_drop))
    torch.manual_seed(3)

    got = model(x)

    torch.manual_seed(3)
    assert torch.equal(got, layer_drop(x))


def test_an_op_of_another_library_is_not_run_while_recording() -> None:
    runs = []

    @torch.library.custom_op("pantile_known_values_test::count", mutates_args=())
    def count(x: torch.Tensor) -> torch.Tensor:
        runs.append(x.shape)
        return x + 1

    count.register_fake(torch.empty_like)
    model = poptorch.inferenceModel(_Model(lambda x: x + count(torch.ones(3))))
    model.compile(torch.zeros(3))

    assert not runs
    assert torch.equal(model(torch.zeros(3)), torch.full((3,), 2.0))
    assert len(runs) == 1
