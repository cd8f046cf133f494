"""What flows in and out of a Program: names, kinds, shapes.

Every placeholder of the graph has one `Input`, every returned value one `Output`, in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

CHECKPOINT = "checkpoint=1"
"""How the text form says that a value is a checkpoint."""


_SCALAR_NAMES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}


def scalar_name(dtype: torch.dtype) -> str:
    """What torch's C++ side calls a type: `Long` for torch.int64."""
    return _SCALAR_NAMES.get(dtype, str(dtype))


class InputKind(Enum):
    """Where the value of a placeholder comes from."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPTIMIZER = "optimizer"
    GRADIENT = "gradient"
    HYPER = "hyper"
    ARGUMENT = "argument"
    SEEDS = "seeds"
    CONSTANT = "constant"
    EDGE = "edge"


class OutputKind(Enum):
    """What becomes of a returned value."""

    USER = "user"
    GRADIENT = "gradient"
    OPTIMIZER = "optimizer"
    EDGE = "edge"
    ANCHOR = "anchor"


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorSpec:
        """The spec of a tensor, real or fake."""
        return TensorSpec(tuple(tensor.shape), tensor.dtype)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclass(frozen=True)
class ScalarSpec:
    """A Python number, given anew with each call (a learning rate, a step count)."""

    def __str__(self) -> str:
        return "scalar"


Spec = TensorSpec | ScalarSpec


@dataclass(frozen=True)
class Input:
    """One placeholder: its kind, the name users know it by, its shape."""

    name: str
    kind: InputKind
    spec: Spec


@dataclass(frozen=True)
class Output:
    """One returned value.

    `name` is the path of a user output, the parameter a gradient belongs to, or the name of a
    piece of optimizer state that this run creates.
    """

    name: str
    kind: OutputKind
    spec: Spec


@dataclass(frozen=True)
class Guard:
    """A Python branch taken while tracing: the node that decided it, and which way it went."""

    node: str
    taken: bool


MULTI_CONV = "multi_conv"
"""The attribute of ops recorded in a `MultiConv` scope: the number of the scope."""


@dataclass(frozen=True)
class NodeTag:
    """Where a node comes from. Kept in `node.meta["tag"]`.

    `block` is the id the user gave the block. A `checkpoint` is a value that is kept for backward
    where others are computed again.
    `module` is the path of the scopes it was recorded in; `attributes` are those of `Attribute`
    scopes, which the text form leaves out.
    """

    phase: str = "forward"
    stage: int = 0
    module: str = ""
    source: str = ""
    block: str = ""
    checkpoint: bool = False
    attributes: tuple[tuple[str, str], ...] = ()
