"""Every mistake is named, and the advice that comes with it works.

One test for each row of the table: the error is ours (and of the builtin class that scripts may
catch), its message names the argument, it carries a fix, and the repaired call runs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.malformed import arguments, setup
from tests.malformed.row import Net, Row, X, Y
from torch import Tensor, nn

import poptorch
from pantile.errors import Error

ROWS = (*arguments.ROWS, *setup.ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_the_mistake_is_named_and_its_fix_works(row: Row) -> None:
    with pytest.raises(row.error) as caught:
        row.bad()

    error = caught.value
    assert isinstance(error, Error)
    assert isinstance(error, row.also)
    for fragment in row.says:
        assert fragment in error.message
    assert error.fix
    assert row.advises in error.fix
    row.good()


def test_the_table_is_long_enough_and_has_no_row_twice() -> None:
    assert len(ROWS) >= 80
    assert len({row.title for row in ROWS}) == len(ROWS)


# Odd, but not wrong: these run, and give eager's numbers.
ODD: dict[str, Callable[[], Tensor]] = {
    "an input that requires a gradient": lambda: X.clone().requires_grad_(),
    "a Parameter as an input": lambda: nn.Parameter(X.clone()),
    "a transposed tensor": lambda: X.t().contiguous().t(),
    "every second row": lambda: torch.cat([X, X])[::2],
    "an expanded row": lambda: X[:1].expand(6, 8),
    "overlapping rows": lambda: torch.randn(13).unfold(0, 8, 1),
    "memory shared with NumPy": lambda: torch.from_numpy(X.numpy()[::2].copy()),
    "one row": lambda: X[:1],
    "a vector": lambda: X[0],
    "one more dimension": lambda: X.unsqueeze(0),
    "a tensor subclass": lambda: X.clone().as_subclass(Labelled),
    "infinities and NaN": lambda: torch.tensor([[float("inf"), float("nan"), *[0.0] * 6]]),
    "a view of a larger tensor": lambda: torch.randn(100, 8)[40:46],
}


class Labelled(torch.Tensor):
    """A tensor with a class of its own."""


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_input_gives_the_numbers_of_eager(kind: str) -> None:
    model, x = Net(), ODD[kind]()

    result = poptorch.inferenceModel(model)(x)

    expected = model(x.detach().as_subclass(Tensor).contiguous())
    assert torch.equal(result.nan_to_num(), expected.nan_to_num())
    assert torch.equal(result.isnan(), expected.isnan())


def test_an_error_in_a_dataset_reaches_the_script_as_it_was_raised() -> None:
    class Unreadable(setup.Items):
        def __getitem__(self, index: int) -> Tensor:
            raise OSError(f"sample {index} cannot be read")

    loader = poptorch.DataLoader(poptorch.Options(), Unreadable(4), batch_size=2)

    with pytest.raises(OSError, match="sample 0 cannot be read"):
        next(iter(loader))


def test_a_dataset_too_small_for_one_batch_is_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loader = poptorch.DataLoader(
        poptorch.Options().deviceIterations(2), setup.Items(3), batch_size=2
    )

    assert list(loader) == []
    assert "will yield nothing" in caplog.text


def test_a_failed_batch_does_not_spoil_the_next_one() -> None:
    model, twin = Net(), Net()
    twin.load_state_dict(model.state_dict())
    executor = poptorch.trainingModel(model)
    for bad in ((X, Y + 1), (X.double(), Y), (X[:, :5], Y), (None, Y)):
        with pytest.raises(Error):
            executor(*bad)

    result = executor(X, Y)

    assert torch.equal(result[1], twin(X, Y)[1])
