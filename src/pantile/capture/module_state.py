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
        seen = shape if self.groups is None else shape[1:]
        return TensorSpec(seen, self.dtype or self.tensor.dtype)

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
            _check_tensor(f"{kind.value} {name!r}", tensor)
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


def _check_tensor(what: str, tensor: torch.Tensor) -> None:
    """Refuse what cannot be the state of a static graph."""
    if nn.parameter.is_lazy(tensor):
        raise CaptureError(
            f"{what} has no shape yet (a lazy module)",
            fix="call the model once on the CPU before wrapping it",
        )
    if tensor.layout is not torch.strided:
        raise CaptureError(
            f"{what} is a {tensor.layout} tensor; the state of a static graph is dense",
            fix="convert it with .to_dense()",
        )
    if tensor.device.type == "meta":
        raise CaptureError(
            f"{what} is on the meta device: it has no values",
            fix='give it memory with model.to_empty(device="cpu") and load its weights',
        )
    if tensor.device.type != "cpu":
        raise CaptureError(
            f"{what} is on device {tensor.device}; weights come from the host",
            fix='move the model with model.to("cpu")',
        )


def _named(module: nn.Module, table: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Every (name, tensor) of one table, tied ones under each of their names."""
    for path, child in module.named_modules(remove_duplicate=False):
        for name, tensor in child.__dict__.get(table, {}).items():
            if tensor is not None:
                yield (f"{path}.{name}" if path else name), tensor


@contextmanager
def exchanged(module: nn.Module, fakes: dict[int, torch.Tensor]) -> Iterator[None]:
    """Put `fakes` (by id of the real tensor) in the module's tables; put the real ones back after.

    Plain attributes that forward set to fake tensors are restored too; if forward failed, all are,
    so that a failed capture leaves no trace.
    """
    modules = list(dict.fromkeys(module.modules()))
    tables = [
        (m, m._parameters, dict(m._parameters), m._buffers, dict(m._buffers)) for m in modules
    ]
    attributes = [(m, _shallow(m.__dict__)) for m in modules]
    for _, parameters, _, buffers, _ in tables:
        for table in (parameters, buffers):
            _refill(table, {name: fakes.get(id(t), t) for name, t in table.items()})
    failed = True
    try:
        yield
        failed = False
    finally:
        for m, parameters, old_parameters, buffers, old_buffers in tables:
            _refill(parameters, old_parameters)
            _refill(buffers, old_buffers)
            m.__dict__["_parameters"], m.__dict__["_buffers"] = parameters, buffers
        for m, before in attributes:
            _restore_attributes(m, before, every=failed)


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


def _restore_attributes(module: nn.Module, before: dict[str, Any], *, every: bool) -> None:
    now = dict(module.__dict__) if not every else {**before, **module.__dict__}
    for key, value in now.items():
        if key in ("_parameters", "_buffers") or not (every or holds_fake(value)):
            continue
        if key not in before:
            del module.__dict__[key]
            continue
        original, content = before[key]
        module.__dict__[key] = original
        if isinstance(content, list):
            original[:] = content
        elif isinstance(content, dict):
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
    begin = int(tensor.storage_offset()) * tensor.element_size()
    return begin, begin + size * tensor.element_size()


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    (a0, a1), (b0, b1) = _span(a), _span(b)
    return a0 < b1 and b0 < a1
