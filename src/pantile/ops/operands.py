"""Checks that ops make on their arguments."""

from __future__ import annotations

from typing import Any

import torch

from pantile.errors import CaptureError, OperandError
from pantile.ops.context import current


def require_tensor(op: str, name: str, value: Any) -> torch.Tensor:
    """`value`, if it is a tensor."""
    if isinstance(value, torch.Tensor):
        return value
    raise OperandError(
        f"{op}: argument {name} must be a torch.Tensor, not {type(value).__name__}",
        fix=f"pass a tensor as {name}, for example torch.as_tensor(value)",
    )


def require_int(op: str, name: str, value: Any) -> int:
    """`value`, if it is a Python integer."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise OperandError(
        f"{op}: argument {name} must be an int, not {type(value).__name__}",
        fix=f"pass a Python integer as {name}: it is fixed when the model is compiled",
    )


def refuse_in_strict_training(op: str) -> None:
    """The device had no gradient for some ops; only strict mode still minds."""
    recorder = current()
    if recorder is not None and recorder.strict and recorder.training:
        raise CaptureError(
            f"poptorch.{op}() is only supported in inference models",
            fix="use inferenceModel, or turn strict mode off to train through it",
        )
