"""What a cost model needs to know of a Program: plain records, no torch.

    ProgramRecord
      tensors   id, name, shape, dtype, kind; views point at the tensor whose memory they show
      ops       id, operator, operands and results by tensor id, stage, phase, module, source line

`extract.py` makes them from a Program; a report stores them as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal

Phase = Literal["forward", "backward", "update"]
Kind = Literal[
    "parameter", "buffer", "optimizer", "gradient", "hyper", "argument", "constant", "value"
]

BYTES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 4,  # an IPU has none: PopTorch narrows
    "float8": 1,
    "int64": 4,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
}


@dataclass(frozen=True)
class TensorRecord:
    """One tensor of a program; `of` is the tensor it is a view of, or its own id."""

    id: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: Kind = "value"
    of: int = -1
    strides: tuple[int, ...] = ()

    @cached_property
    def elements(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)

    @cached_property
    def bytes(self) -> int:
        """Its size on an IPU, where 64-bit types are 32 bits wide."""
        return self.elements * BYTES.get(self.dtype, 4)


@dataclass(frozen=True)
class OpRecord:
    """One operator call."""

    id: int
    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    phase: Phase = "forward"
    stage: int = 0
    module: str = ""
    source: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ProgramRecord:
    """A program: `tensors[i].id == i`, and `ops` are in the order in which they run."""

    name: str
    tensors: tuple[TensorRecord, ...]
    ops: tuple[OpRecord, ...]
    outputs: tuple[int, ...] = ()
    written: tuple[int, ...] = ()

    def operands(self, op: OpRecord) -> list[TensorRecord]:
        """The tensors an op reads."""
        return [self.tensors[i] for i in op.inputs]

    def results(self, op: OpRecord) -> list[TensorRecord]:
        """The tensors an op makes."""
        return [self.tensors[i] for i in op.outputs]

    def of_kind(self, kind: Kind) -> list[TensorRecord]:
        """The tensors of one kind."""
        return [tensor for tensor in self.tensors if tensor.kind == kind]

    @cached_property
    def stages(self) -> int:
        """How many pipeline stages the program has."""
        return 1 + max((op.stage for op in self.ops), default=0)

    @cached_property
    def stage_of_state(self) -> dict[int, int]:
        """The stage that holds each parameter, buffer and constant: the first that reads it."""
        found: dict[int, int] = {}
        for op in self.ops:
            for operand in op.inputs:
                root = self.tensors[operand].of
                if self.tensors[root].kind not in ("value", "argument"):
                    found.setdefault(root, op.stage)
        return found
