"""What forward did to the module itself: state it rebound or removed, attributes it replaced.

    self.buf = self.buf + 1      a buffer: the new value is written to the state, as in eager
    del self.buf                 refused: the state of a static graph has fixed members
    self.h = f(self.h)           a plain attribute: refused, the graph would keep the old one
    self.n += 1                  a Python number: it is frozen in the graph; a warning says so

In strict mode rebinding state is refused, and plain attributes change once, as in PopTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses import FakeTensor

from pantile.capture.module_state import ModuleState, StateTensor
from pantile.errors import CaptureError
from pantile.logging import logger

_TABLES = ("_parameters", "_buffers")


class Attributes:
    """The plain attributes of a module before forward ran."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before = dict(_plain(module))

    def check(self, used: Mapping[int, torch.Tensor]) -> None:
        """Refuse an attribute that was read as a constant and then replaced."""
        for name, now in _plain(self._module):
            before = self._before.get(name)
            if now is before:
                continue
            if isinstance(before, torch.Tensor) and isinstance(now, torch.Tensor):
                if id(before) in used:
                    raise CaptureError(
                        f"forward reads the attribute {name!r} and then replaces it; a static "
                        "graph would read the first value at every call",
                        fix=_buffer_fix(name),
                    )
            elif type(before) in (int, float) and type(now) in (int, float) and before != now:
                logger.warning(
                    "forward changes the attribute %r from %s to %s. That happens once, when the "
                    "model is compiled; make it a buffer to have it change at every run.",
                    name,
                    before,
                    now,
                )

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """The attribute that holds a tensor, or a tensor that shares its memory."""
        for name, value in self._before.items():
            if value is tensor:
                return name
        place = _storage(tensor)
        for name, value in self._before.items():
            if isinstance(value, torch.Tensor) and place is not None and _storage(value) == place:
                return name
        return None


def write_error(name: str | None, what: str) -> CaptureError:
    """Forward wrote to a tensor that is not state."""
    if name is None:
        return CaptureError(
            f"forward writes ({what}) to a tensor that is neither a parameter nor a buffer",
            fix="register it with self.register_buffer(name, tensor) so that it is state",
        )
    return CaptureError(
        f"forward writes ({what}) to the attribute {name!r}, which is neither a parameter nor a "
        "buffer",
        fix=_buffer_fix(name),
    )


def _buffer_fix(name: str) -> str:
    owner, _, leaf = name.partition("[")[0].rpartition(".")
    place = f" (in {owner!r})" if owner else ""
    return f'make it state: self.register_buffer("{leaf}", ...) in __init__{place}'


def _storage(tensor: torch.Tensor) -> int | None:
    if isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided or not tensor.numel():
        return None
    return tensor.untyped_storage().data_ptr()


def _plain(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every tensor and number that is an attribute, or sits directly in a list or dict of one."""
    for path, child in module.named_modules():
        for key, value in child.__dict__.items():
            if key in _TABLES:
                continue
            name = f"{path}.{key}" if path else key
            if isinstance(value, (torch.Tensor, int, float)):
                yield name, value
            elif isinstance(value, (list, tuple)):
                yield from ((f"{name}[{i}]", v) for i, v in enumerate(value) if _is_tensor(v))
            elif isinstance(value, dict):
                yield from ((f"{name}[{k!r}]", v) for k, v in value.items() if _is_tensor(v))


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def settle_state(
    module: nn.Module,
    entries: Sequence[StateTensor],
    fakes: Mapping[int, torch.Tensor],
    *,
    strict: bool,
) -> None:
    """Write the values of rebound buffers and parameters to the state they replace."""
    tables = {
        f"{path}.{name}" if path else name: (table[name], _exempt(child))
        for path, child in module.named_modules(remove_duplicate=False)
        for table in (child._parameters, child._buffers)
        for name in table
    }
    pending: list[tuple[torch.Tensor, torch.Tensor]] = []
    for entry in entries:
        fake = fakes[id(entry.tensor)]
        new = _bound_to(entry, tables)
        if new is fake:
            continue
        if strict and not tables[entry.name][1]:
            raise CaptureError(
                f"{_kind(entry)} {entry.name} is reassigned within the model when calling the "
                "forward method.",
                fix=f"write to it in place: self.{entry.name}.copy_(...)",
            )
        _check_spec(entry, fake, new)
        # Cloned first: two buffers may have been swapped.
        pending.append((fake, new.detach().clone()))
    with torch.no_grad():
        for fake, value in pending:
            fake.copy_(value)


def check_constants(recorded: fx.GraphModule, state: ModuleState) -> None:
    """Refuse a graph that holds a parameter or buffer as a constant: it would never change."""
    places = {_storage(entry.tensor): entry for entry in state.entries}
    for module in recorded.modules():
        for value in [
            *vars(module).values(),
            *module._parameters.values(),
            *module._buffers.values(),
        ]:
            if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
                continue
            entry = places.get(_storage(value))
            if entry is not None and _storage(value) is not None:
                raise CaptureError(
                    f"forward reaches {entry.kind.value} {entry.name!r} past the module that owns "
                    "it, where capture cannot follow (inside torch.cond, while_loop or map)",
                    fix="use it as an attribute of its module, or pass it to the body",
                )


def _bound_to(entry: StateTensor, tables: Mapping[str, tuple[Any, bool]]) -> torch.Tensor:
    """What the names of a state tensor are bound to now."""
    values = []
    for name in (entry.name, *entry.aliases):
        value = tables.get(name, (None, False))[0]
        if value is None:
            raise CaptureError(
                f"{_kind(entry)} {name} is removed from the model when calling the forward method.",
                fix="keep it: the state of a static graph cannot disappear",
            )
        values.append(value)
    if any(value is not values[0] for value in values):
        raise CaptureError(
            f"{_kind(entry)} {entry.name} is reassigned, but not under its other names "
            f"({', '.join(entry.aliases)})",
            fix="write to it in place with copy_, so that all names see it",
        )
    found: torch.Tensor = values[0]
    return found


def _check_spec(entry: StateTensor, fake: torch.Tensor, new: torch.Tensor) -> None:
    if new.shape != fake.shape:
        raise CaptureError(
            f"{_kind(entry)} {entry.name} is replaced by a tensor of shape {list(new.shape)}; "
            f"it has {list(fake.shape)}",
            fix="keep the shape: state of a static graph has a fixed size",
        )
    if new.dtype != fake.dtype:
        raise CaptureError(
            f"{_kind(entry)} {entry.name} is replaced by a tensor of dtype {new.dtype}; it has "
            f"{fake.dtype}",
            fix=f"convert the new value with .to({fake.dtype})",
        )


def _kind(entry: StateTensor) -> str:
    return entry.kind.value.capitalize()


def _exempt(module: nn.Module) -> bool:
    """BatchNorm may rebind its statistics (spec 2.1)."""
    return isinstance(module, nn.modules.batchnorm._BatchNorm)
