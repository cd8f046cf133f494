"""From torch's words to what the user can do about it."""

from __future__ import annotations

import pytest
import torch

from pantile.program.advice import advise, describe

X = torch.zeros(4, 8)
LABELS = torch.zeros(4)


def eager_error(call: object, *args: object) -> str:
    with pytest.raises((RuntimeError, TypeError, ValueError, IndexError)) as caught:
        call(*args)  # type: ignore[operator]
    return str(caught.value)


def test_arguments_are_described_by_name_type_and_shape() -> None:
    text = describe({"x": X, "mask": None, "mode": "fast", "sizes": [1, 2]})

    assert text == "x: float32[4, 8], mask: None, mode: str, sizes: list"


@pytest.mark.parametrize(
    ("call", "args", "given", "fix"),
    [
        (torch.mm, (X, X), {"x": X}, "check the shape of x"),
        (torch.add, (X, torch.zeros(3)), {"x": X}, "check the shape of x"),
        (torch.mm, (X.double(), X.t()), {"x": X.double()}, "x.float()"),
        (torch.mm, (X.cfloat(), X.t()), {"x": X.cfloat()}, "x.real"),
        (torch.nn.functional.linear, (None, X), {"x": None}, "torch.as_tensor(x)"),
        (torch.embedding, (X, LABELS), {"x": X, "ids": LABELS}, "ids.long()"),
        (torch.nn.functional.nll_loss, (X, LABELS), {"x": X, "y": LABELS}, "y.long()"),
        (X.gather, (1, LABELS.view(4, 1)), {"x": X, "y": LABELS}, "y.long()"),
        (torch.embedding, (X, torch.tensor([9])), {"ids": torch.tensor([9])}, "values of ids"),
    ],
)
def test_what_eager_says_leads_to_the_argument_and_its_repair(
    call: object, args: tuple[object, ...], given: dict[str, object], fix: str
) -> None:
    assert fix in advise(eager_error(call, *args), given)


def test_an_unknown_message_leads_to_the_model_on_the_cpu() -> None:
    assert "on the CPU" in advise("something else went wrong", {"x": X})
