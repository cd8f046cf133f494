"""Questions about tensors and attributes of the program being captured, under PopTorch's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses import FakeTensor

from pantile.errors import OperandError
from pantile.ops.context import current
from pantile.ops.custom import ATTRIBUTES
from pantile.ops.operands import require_tensor


def getIpuTensorId(tensor: torch.Tensor) -> int:
    """A number that no other tensor has while forward is being captured."""
    require_tensor("getIpuTensorId", "tensor", tensor)
    if current() is None or not isinstance(tensor, FakeTensor):
        raise OperandError(
            f"getIpuTensorId: Expected an IPU tensor, not a tensor of shape {list(tensor.shape)} "
            "on the host",
            fix="call it inside forward, on an input or on what an op returned",
        )
    return id(tensor)


def accessAttributes(attribute_id: str) -> Mapping[str, Any] | None:
    """The attributes that a call of `custom_op` was given, by the id `attr:<number>`."""
    return ATTRIBUTES.get(attribute_id)
