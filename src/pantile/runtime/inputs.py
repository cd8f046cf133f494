"""From the arguments of a call to the arguments of each micro-batch (spec 2.2, 2.3).

Dim 0 of every tensor is laid out `[device iteration][accumulation step][replica][sample]`; a
micro-batch is a slice of it, without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pantile.capture.signature import Bound
from pantile.enums import CommGroupType
from pantile.errors import BatchError, InputMismatch
from pantile.logging import logger
from pantile.options import Options
from pantile.program.structure import Constant, Container, Structure, flatten

_NARROWED = {torch.float64: torch.float32, torch.bfloat16: torch.float32}


@dataclass(frozen=True)
class Slicing:
    """How dim 0 is divided: D x G x (R / g) micro-batches, and which rows a replica reads."""

    iterations: int
    accumulation: int
    replicas: int
    group_size: int = 1
    grouping: CommGroupType = CommGroupType.Consecutive

    @staticmethod
    def of(options: Options) -> Slicing:
        """As the options say."""
        return Slicing(
            options.device_iterations,
            options.Training.gradient_accumulation,
            options.replication_factor,
            options.input_group_size,
            CommGroupType(options.input_cgt),
        )

    @property
    def parts(self) -> int:
        """How many micro-batches one input holds."""
        return self.iterations * self.accumulation * (self.replicas // self.group_size)

    def part(self, iteration: int, step: int, replica: int) -> int:
        """Which of them a replica reads at a given time."""
        groups = self.replicas // self.group_size
        if self.grouping is CommGroupType.Orthogonal:
            group = replica % groups
        else:
            group = replica // self.group_size
        return (iteration * self.accumulation + step) * groups + group


class InputReader:
    """Checks and slices the tensors of calls; warns once about each oddity."""

    def __init__(self, slicing: Slicing, *, strict: bool) -> None:
        self.slicing = self._slicing = slicing
        self._strict = strict
        self._warned: set[str] = set()

    def check(self, bound: Bound) -> None:
        """Refuse what cannot be fed to a static graph, naming the argument."""
        for name, tensor in zip(bound.names, bound.tensors, strict=True):
            _check_tensor(name, tensor)
            self._check_rows(name, tensor)
        for name, value in bound.values.items():
            if isinstance(value, (np.ndarray, np.generic)):
                raise InputMismatch(
                    f"argument {name!r} is a NumPy {type(value).__name__}, not a tensor",
                    fix=f"pass torch.as_tensor({name})",
                )
            _check_constants(name, flatten(value)[1])
        if self._strict and any(isinstance(value, dict) for value in bound.values.values()):
            self._warn("dict", "Dictionary inputs have only partial support in PopTorch.")

    def _check_rows(self, name: str, tensor: torch.Tensor) -> None:
        rows = tensor.shape[0] if tensor.dim() else 1
        parts, s = self._slicing.parts, self._slicing
        if rows % parts or (tensor.dim() == 0 and parts != 1):
            raise BatchError(
                f"Invalid batch dimension: dim 0 of argument {name!r} is {rows}, which is not "
                f"divisible by {parts} = deviceIterations ({s.iterations}) * gradientAccumulation "
                f"({s.accumulation}) * replicationFactor ({s.replicas}) / input group size "
                f"({s.group_size})",
                fix=f"pass a multiple of {parts} rows, or load data with poptorch.DataLoader, "
                "whose batches fit",
            )
        if rows == 0 and parts >= 1 and tensor.dim():
            shape = list(tensor.shape)
            strictly = f"Zero-sized tensors are unsupported (Got shape {shape}): "
            raise BatchError(
                (strictly if self._strict else "")
                + f"argument {name!r} is an empty batch: its shape is {shape}",
                fix="skip empty batches, or use drop_last=True",
            )

    def prepare(self, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors as the device reads them: detached, contiguous, narrowed if strict."""
        return [
            tensor if self._is_ready(tensor) else self._ready(name, tensor)
            for name, tensor in zip(names, tensors, strict=True)
        ]

    def _is_ready(self, tensor: torch.Tensor) -> bool:
        return (
            type(tensor) is torch.Tensor
            and not tensor.requires_grad
            and tensor.is_contiguous()
            and not (self._strict and tensor.dtype in _NARROWED)
        )

    def _ready(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            self._warn(
                f"grad {name}",
                f"Input tensor {name} has requires_grad=True set. It is detached: gradients with "
                "respect to inputs are not returned.",
            )
        tensor = tensor.detach()
        if type(tensor) is not torch.Tensor:
            tensor = tensor.as_subclass(torch.Tensor)
        if self._strict and tensor.dtype in _NARROWED:
            tensor = tensor.to(_NARROWED[tensor.dtype])
        if not tensor.is_contiguous():
            if self._strict:
                self._warn("contiguous", f"Input tensor {name} is not contiguous: it is copied.")
            tensor = tensor.contiguous()
        return tensor

    def _warn(self, key: str, message: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            logger.warning(message)

    def micro_batch(
        self, tensors: Sequence[torch.Tensor], iteration: int, step: int, replica: int
    ) -> Sequence[torch.Tensor]:
        """The slice one replica reads at a given time."""
        parts = self._slicing.parts
        if parts == 1:
            return tensors
        part = self._slicing.part(iteration, step, replica)
        return [_rows(tensor, part, parts) for tensor in tensors]

    def originals(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """What replicas that share rows with an earlier one read, if the program writes to them."""
        if self._slicing.group_size == 1:
            return tensors
        return [tensor.clone() for tensor in tensors]

    def is_first_reader(self, replica: int) -> bool:
        """Is this replica the one of its group whose in-place changes the caller sees?"""
        place = self._slicing.part(0, 0, replica)
        return all(self._slicing.part(0, 0, r) != place for r in range(replica))


def _rows(tensor: torch.Tensor, part: int, parts: int) -> torch.Tensor:
    size = tensor.shape[0] // parts
    return tensor.narrow(0, part * size, size)


def _check_tensor(name: str, tensor: torch.Tensor) -> None:
    if tensor.is_nested:
        raise InputMismatch(
            f"argument {name!r} is a nested tensor; inputs must be dense",
            fix=f"pass torch.nested.to_padded_tensor({name}, 0.0)",
        )
    if tensor.layout is not torch.strided:
        raise InputMismatch(
            f"argument {name!r} is a {tensor.layout} tensor; inputs must be dense",
            fix=f"pass {name}.to_dense()",
        )
    if tensor.device.type != "cpu":
        raise InputMismatch(
            f"argument {name!r} is on device {tensor.device}; inputs come from the host",
            fix=f'pass a tensor with data: {name}.to("cpu")'
            if tensor.device.type != "meta"
            else f"pass a tensor with data: torch.zeros_like({name}, device='cpu') for a trial",
        )
    if tensor.is_quantized:
        raise InputMismatch(
            f"argument {name!r} is quantised; inputs must be plain tensors",
            fix=f"pass {name}.dequantize()",
        )


def _check_constants(name: str, structure: Structure) -> None:
    match structure:
        case Constant(value) if isinstance(value, (np.ndarray, np.generic)):
            raise InputMismatch(
                f"argument {name!r} holds a NumPy {type(value).__name__}; only tensors are fed to "
                "the device",
                fix="convert it with torch.as_tensor",
            )
        case Container(_, _, children):
            for child in children:
                _check_constants(name, child)
