"""Tensor attributes that are not buffers: constants that fold, and changes that are refused."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from tests.unit.capture.against_eager import infers_like_eager, trains_like_eager
from torch import Tensor, nn

import poptorch
from pantile.errors import CaptureError


class Folding(nn.Module):
    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3))
        self.table = table


@pytest.mark.parametrize("top", [1.0, 9.0])
def test_reads_of_a_constant_attribute_fold_and_may_decide_branches(top: float) -> None:
    class Folded(Folding):
        def forward(self, x: Tensor) -> Tensor:
            if self.table.max() > 3:
                x = x * 2
            width = int(self.table[0, 0])
            return (x[:, :width] * self.w[:width] * self.table.triu().sum()).mean()

    trains_like_eager(Folded(torch.tensor([[2.0, 1.0], [1.0, top]])), (torch.randn(2, 3),))


def test_a_constant_of_the_module_file_is_read_at_capture() -> None:
    outside = torch.tensor([1.0, 2.0])

    class Global(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * outside

    infers_like_eager(Global(), (torch.randn(2),))


class Counter(nn.Module):
    """Counts in a plain attribute; `change` says how."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change = change
        self.i = torch.tensor([0.0])
        self.past = [torch.tensor([0.0])]
        self.named = {"n": torch.tensor([0.0])}

    def forward(self, x: Tensor) -> Tensor:
        CHANGES[self.change](self, x)
        return x + 1


def _set(name: str, value: Any) -> Any:
    return lambda m, x: setattr(m, name, value(m, x))


CHANGES: dict[str, Any] = {
    "in place": lambda m, x: m.i.add_(1),
    "in place by an input": lambda m, x: m.i.add_(x),
    "through a view": lambda m, x: m.i[0].fill_(3),
    "augmented": _set("i", lambda m, x: m.i.__iadd__(1)),
    "replaced by a sum with an input": _set("i", lambda m, x: m.i + x),
    "replaced by a sum with a constant": _set("i", lambda m, x: m.i + 1),
    "in a list": lambda m, x: m.past.__setitem__(0, m.past[0] + x),
    "in a list, in place": lambda m, x: m.past[0].add_(x),
    "in a dict": lambda m, x: m.named.__setitem__("n", m.named["n"] + x),
}
NAMES = {"in a list": "past[0]", "in a list, in place": "past[0]", "in a dict": "named['n']"}


@pytest.mark.parametrize("change", CHANGES)
def test_changing_an_attribute_that_is_not_a_buffer_is_refused_by_name(change: str) -> None:
    model = Counter(change)
    before = model.i, model.past[0], model.named["n"]

    with pytest.raises(CaptureError) as caught:
        poptorch.inferenceModel(model)(torch.ones(1))

    assert repr(NAMES.get(change, "i")) in caught.value.message
    assert "register_buffer" in (caught.value.fix or "")
    after = model.i, model.past[0], model.named["n"]
    assert all(a is b for a, b in zip(before, after, strict=True))
    assert [t.item() for t in after] == [0.0, 0.0, 0.0]


def test_the_fix_makes_the_counter_count() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("i", torch.tensor([0.0]))

        def forward(self, x: Tensor) -> Tensor:
            self.i = self.i + x
            return self.i * 1

    infers_like_eager(Fixed(), (torch.ones(1),), rounds=3)


def test_strict_mode_changes_the_attribute_once_as_poptorch_does() -> None:
    class Documented(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.i = torch.tensor([0], dtype=torch.int32)

        def forward(self) -> Tensor:
            self.i += 1
            return self.i

    model = Documented()
    executor = poptorch.inferenceModel(model, poptorch.Options().strict())

    assert [executor().item(), executor().item()] == [1, 1]
    assert model.i.item() == 1


def test_an_attribute_that_only_stores_a_result_is_put_back() -> None:
    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.last = torch.zeros(1)
            self.seen: list[Tensor] = []

        def forward(self, x: Tensor) -> Tensor:
            y = self.fc(x)
            self.last = y
            self.new = y
            self.seen.append(y)
            return y

    model = Remembering()
    last, x = model.last, torch.randn(3, 2)

    result = poptorch.inferenceModel(model)(x)

    assert torch.equal(result, model.fc(x))
    assert model.last is last
    assert model.seen == []
    assert not hasattr(model, "new")


def test_a_python_counter_is_frozen_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = 0

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            return x * self.steps

    executor = poptorch.inferenceModel(Steps())

    with caplog.at_level(logging.WARNING):
        results = [executor(torch.ones(1)).item() for _ in range(2)]

    assert results == [1.0, 1.0]
    assert "'steps' from 0 to 1" in caplog.text


def test_a_constant_attribute_can_be_returned_and_is_the_callers_own() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.tensor([1.0, 2.0])

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return x + 1, self.table, self.table[1:]

    executor = poptorch.inferenceModel(Table())
    executor(torch.zeros(2))[1].fill_(9.0)

    _, whole, part = executor(torch.zeros(2))

    assert whole.tolist() == [1.0, 2.0]
    assert part.tolist() == [2.0]
