"""What the reference engine makes of samples, beside the compiler."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import poptorch
from pantile.lowering import expectation
from pantile.lowering.expectation import Expectation
from pantile.lowering.prepare import Prepared, prepare


class Averaged(nn.Module):
    """A model that writes to its state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds to the buffer."""
        self.seen.add_(x)
        return x.exp()


def _prepared(model: nn.Module, x: torch.Tensor) -> Prepared:
    executor = poptorch.inferenceModel(model, poptorch.Options().engine("reference"))
    executor(x)
    return prepare(executor._compiled[0].program)


def _values(prepared: Prepared, **named: torch.Tensor) -> list[torch.Tensor]:
    return [named[entry.name].clone() for entry in prepared.program.inputs]


def test_results_and_inputs_are_those_of_the_values_it_was_given() -> None:
    x, seen = torch.tensor([0.0, 1.0, 2.0]), torch.full((3,), 5.0)
    prepared = _prepared(Averaged(), x)
    values = _values(prepared, x=x, seen=seen)

    expected = Expectation(prepared, values).start()
    for value in values:
        value.fill_(float("nan"))  # as a native run may write to them
    found = expected.results()

    assert found is not None
    names = [entry.name for entry in prepared.program.inputs]
    after = dict(zip(names, found[-len(names) :], strict=True))
    assert torch.equal(found[0], x.exp())
    assert torch.equal(after["seen"], seen + x)


def test_what_is_too_much_is_computed_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expectation, "MOST_WORK", 0)
    x = torch.ones(3)
    prepared = _prepared(Averaged(), x)

    found = Expectation(prepared, _values(prepared, x=x, seen=x)).start().results()

    assert found is not None
    assert torch.equal(found[0], x.exp())


def test_a_program_that_fails_has_no_results() -> None:
    table = nn.Embedding(4, 2)
    prepared = _prepared(table, torch.tensor([1, 2]))
    values = [
        torch.tensor([1, 9]) if not entry.name.endswith("weight") else table.weight.detach()
        for entry in prepared.program.inputs
    ]

    assert Expectation(prepared, values).start().results() is None


def test_the_number_of_threads_is_left_as_it_was() -> None:
    x, before = torch.ones(3), torch.get_num_threads()
    prepared = _prepared(Averaged(), x)
    elsewhere: list[int] = []

    Expectation(prepared, _values(prepared, x=x, seen=x)).start().results()
    for thread in threading.enumerate():
        if thread.name == "pantile-expected":
            thread.join()
    late = threading.Thread(target=lambda: elsewhere.append(torch.get_num_threads()))
    late.start()
    late.join()

    assert torch.get_num_threads() == before
    assert elsewhere == [before]
