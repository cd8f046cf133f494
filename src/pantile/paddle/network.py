"""The forward part of a Paddle program as a torch module.

    feeds [1, …] ──► drop the leading dim ──► operator by operator ──► fetches [1, …]

The leading dim is the micro-batch as the executor counts them: a feed may have any shape, also
none, and Paddle stacks results of micro-batches instead of joining them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import groupby

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)

from pantile.errors import CaptureError, Error, OperandError
from pantile.ops import Block, identity_loss
from pantile.paddle.call import Call, Table
from pantile.paddle.description import Operator
from pantile.paddle.parts import Parts, place_of


class Network(nn.Module):
    """Parameters, buffers and operators of a program's forward part."""

    def __init__(
        self,
        parts: Parts,
        table: Table,
        *,
        feeds: Sequence[str],
        fetches: Sequence[str],
        state: Mapping[str, torch.Tensor],
        writes_state: bool = True,
        half: bool = False,
        placed: bool = False,
    ) -> None:
        super().__init__()
        self._half, self._is_placed = half, placed
        self._parts, self._table = parts, table
        self._feeds, self._fetches = tuple(feeds), tuple(fetches)
        self._writes_state = writes_state
        self._keys: dict[str, str] = {}
        self._share(state)
        self._check_fetches()

    def _share(self, state: Mapping[str, torch.Tensor]) -> None:
        """Register tensors under names torch accepts: no dots, and no name of nn.Module's own."""
        for name, tensor in state.items():
            key = name.replace(".", "/")
            while hasattr(self, key):
                key += "/"
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(key, tensor)
            else:
                self.register_buffer(key, self._rounded(tensor))
            self._keys[name] = key

    def _rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.half() if self._half and tensor.dtype is torch.float32 else tensor

    def named_state(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters and buffers by their names in the program."""
        return ((name, getattr(self, key)) for name, key in self._keys.items())

    def frozen(self) -> Network:
        """The same network over the same tensors that leaves its buffers as they are."""
        return Network(
            self._parts,
            self._table,
            feeds=self._feeds,
            fetches=self._fetches,
            state=dict(self.named_state()),
            writes_state=False,
            half=self._half,
        )

    def _check_fetches(self) -> None:
        made = {name for op in self._parts.forward for name in op.writes}
        missing = [n for n in self._fetches if n not in made | {*self._feeds} | {*self._keys}]
        if missing:
            raise CaptureError(
                f"fetch_list names what forward does not compute: {', '.join(missing)}",
                fix="fetch variables of the forward part; gradients and updates stay on the device",
            )

    def forward(self, *feeds: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """One micro-batch."""
        values = dict(self.named_state())
        pairs = zip(self._feeds, feeds, strict=True)
        values.update({name: self._rounded(tensor.squeeze(0)) for name, tensor in pairs})
        for place, operators in groupby(self._parts.forward, self._place):
            with _placed(place):
                for op in operators:
                    self._run(op, values)
        if self._parts.loss is not None and torch.is_grad_enabled():
            loss = values[self._parts.loss]
            if self._parts.loss_gradient != 1.0:
                loss = loss * self._parts.loss_gradient
            identity_loss(loss, "none")
        if self._writes_state:
            self._keep(values)
        return tuple(self._result(values[name]) for name in self._fetches)

    def _result(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._half and tensor.dtype is torch.float16:
            tensor = tensor.float()
        return tensor.unsqueeze(0)

    def _place(self, op: Operator) -> tuple[int, int] | None:
        return place_of(op) if self._is_placed else None

    def _run(self, op: Operator, values: dict[str, torch.Tensor]) -> None:
        try:
            self._table[op.type](Call(op, values, self._parts.variables))
        except (Error, DataDependentOutputException, DynamicOutputShapeException):
            raise  # the core explains these
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            read = {name: list(values[name].shape) for name in op.reads if name in values}
            raise OperandError(
                f"operator {op.type!r} on {read}: {error}",
                fix="check the shapes and types of what the program is fed",
            ) from error
        if self._half:
            values.update({n: self._rounded(values[n]) for n in op.writes if n in values})
        for name in op.writes:
            if name in values and not self._parts.reaches(name):
                values[name] = values[name].detach()

    def _keep(self, values: Mapping[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in self.named_state():
                if values[name] is not tensor and not tensor.requires_grad:
                    tensor.copy_(values[name])


@contextmanager
def _placed(place: tuple[int, int] | None) -> Iterator[None]:
    with nullcontext() if place is None else Block(str(place[0]), ipu_id=place[1]):
        yield
