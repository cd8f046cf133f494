"""The tensors a module owns, and how they are exchanged for fake ones while forward is recorded.

Tied weights are one entry: the first name leads, the others are aliases.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensor

from pantile.errors import CaptureError
from pantile.program.spec import InputKind, TensorSpec


@dataclass(frozen=True, eq=False)
class StateTensor:
    """A parameter or buffer of the host module.

    `dtype` is set where the device keeps it in another one than the host (strict mode); `groups`
    where each group of replicas has its own value, in a leading dimension that forward never sees.
    """

    name: str
    kind: InputKind
    tensor: torch.Tensor
    aliases: tuple[str, ...] = ()
    dtype: torch.dtype | None = None
    groups: tuple[int, ...] | None = None

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype that forward sees."""
        shape = tuple(self.tensor.shape)
        return TensorSpec(shape if self.groups is None else shape[1:], self.dtype or self.tensor.dtype)

    @property
    def seen(self) -> torch.Tensor:
        """The host tensor as forward sees it."""
        return self.tensor if self.groups is None else self.tensor.detach()[0]


@dataclass(frozen=True, eq=False)
class ModuleState:
    """All parameters, then all buffers, each once."""

    entries: tuple[StateTensor, ...]

    @staticmethod
    def of(module: nn.Module) -> ModuleState:
        """Read the module's own tensors."""
        names: dict[int, list[str]] = {}
        kinds: dict[int, tuple[InputKind, torch.Tensor]] = {}
        named = [
            *((InputKind.PARAMETER, pair) for pair in _named(module, "_parameters")),
            *((InputKind.BUFFER, pair) for pair in _named(module, "_buffers")),
        ]
        for kind, (name, tensor) in named:
            names.setdefault(id(tensor), []).append(name)
            kinds.setdefault(id(tensor), (kind, tensor))
        return ModuleState(
            tuple(
                StateTensor(names[key][0], kind, tensor, tuple(names[key][1:]))
                for key, (kind, tensor) in kinds.items()
            )
        )

    def of_kind(self, kind: InputKind) -> list[StateTensor]:
        """The entries of one kind, in order."""
        return [entry for entry in self.entries if entry.kind is kind]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Leading name to tensor."""
        return {entry.name: entry.tensor for entry in self.entries}


def _named(module: nn.Module, table: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Every (name, tensor) of one table, tied ones under each of their names."""
    for path, child in module.named_modules(remove_duplicate=False):
        for name, tensor in child.__dict__.get(table, {}).items():
            if tensor is not None:
                yield (f"{path}.{name}" if path else name), tensor


@dataclass(frozen=True)
class Rebound:
    """A buffer or parameter that forward replaced by another tensor (None: deleted)."""

    name: str
    kind: str
    old: torch.Tensor
    new: torch.Tensor | None
    in_norm: bool


@contextmanager
def exchanged(module: nn.Module, fakes: dict[int, torch.Tensor]) -> Iterator[list[Rebound]]:
    """Put `fakes` (by id of the real tensor) in the module's tables; put the real ones back after.

    The list that is yielded is filled by `find_rebound` before leaving; plain attributes that
    forward set to fake tensors are restored too, so a failed capture leaves no trace.
    """
    modules = list(dict.fromkeys(module.modules()))
    tables = [(m, m._parameters, dict(m._parameters), m._buffers, dict(m._buffers)) for m in modules]
    attributes = [(m, _shallow(m.__dict__)) for m in modules]
    for _, parameters, _, buffers, _ in tables:
        for table in (parameters, buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = fakes.get(id(tensor), tensor)
    try:
        yield []
    finally:
        for m, parameters, old_parameters, buffers, old_buffers in tables:
            _refill(parameters, old_parameters)
            _refill(buffers, old_buffers)
            m.__dict__["_parameters"], m.__dict__["_buffers"] = parameters, buffers
        for m, before in attributes:
            _restore_attributes(m, before)


def find_rebound(module: nn.Module, fakes: dict[int, torch.Tensor]) -> list[Rebound]:
    """What forward did to the tables themselves: entries deleted or bound to another tensor."""
    known = {id(fake): real for real, fake in fakes.items()}
    found = []
    for path, child in module.named_modules():
        norm = isinstance(child, nn.modules.batchnorm._BatchNorm)
        for kind, table in (("Parameter", child._parameters), ("Buffer", child._buffers)):
            for name, tensor in table.items():
                if isinstance(tensor, torch.Tensor) and id(tensor) not in known:
                    full = f"{path}.{name}" if path else name
                    found.append(Rebound(full, kind, tensor, tensor, norm))
    return found


def _shallow(attributes: dict[str, Any]) -> dict[str, Any]:
    """A copy one level deep, so that appended lists and dicts can be put back."""
    return {
        key: (value, type(value)(value) if type(value) in (list, dict) else None)
        for key, value in attributes.items()
    }


def _refill(table: dict[str, Any], old: dict[str, Any]) -> None:
    table.clear()
    table.update(old)


def holds_fake(value: object) -> bool:
    """True if a value is, or directly contains, a fake tensor."""
    if isinstance(value, FakeTensor):
        return True
    if isinstance(value, dict):
        return any(isinstance(item, FakeTensor) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(holds_fake(item) for item in value)
    return False


def _restore_attributes(module: nn.Module, before: dict[str, Any]) -> None:
    for key, value in list(module.__dict__.items()):
        if key in ("_parameters", "_buffers") or not holds_fake(value):
            continue
        if key not in before:
            del module.__dict__[key]
            continue
        original, content = before[key]
        module.__dict__[key] = original
        if isinstance(original, list):
            original[:] = content
        elif isinstance(original, dict):
            _refill(original, content)


def check_overlap(state: ModuleState) -> None:
    """Refuse two state tensors that share memory: a static graph would update only one of them."""
    seen: dict[int, StateTensor] = {}
    for entry in state.entries:
        tensor = entry.tensor
        if tensor.layout is not torch.strided or tensor.numel() == 0:
            continue
        try:
            pointer = tensor.untyped_storage().data_ptr()
        except (RuntimeError, NotImplementedError):
            continue
        other = seen.setdefault(pointer, entry)
        if other is not entry and _overlap(other.tensor, tensor):
            raise CaptureError(
                f"{entry.kind.value} {entry.name!r} shares memory with {other.name!r}",
                fix="assign the same Parameter object to both names to tie them, or clone one",
            )


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    size = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    begin = tensor.storage_offset() * tensor.element_size()
    return begin, begin + size * tensor.element_size()


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    (a0, a1), (b0, b1) = _span(a), _span(b)
    return a0 < b1 and b0 < a1
