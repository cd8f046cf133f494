"""Where parameters and buffers live.

    shared     the host module's tensors are the device's: nothing to copy, edits are seen at once
    resident   the device has its own (strict mode): copied when asked, or on first host access

Buffers that a program writes exist once per replica; replica 0 is the one the host sees.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from pantile.capture.module_state import ModuleState, StateTensor
from pantile.errors import CaptureError, StateError
from pantile.logging import logger
from pantile.program.spec import InputKind
from pantile.runtime.held_objects import still_holds

_NARROWED = {torch.float64: torch.float32, torch.bfloat16: torch.float32}
_SLOTS = ("_parameters", "_buffers", "_modules")


class HostTables:
    """Whether a module still holds the very tensors and children it held, asked cheaply."""

    def __init__(self, module: nn.Module) -> None:
        found = (vars(child).get(slot) for child in module.modules() for slot in _SLOTS)
        #: The dicts of all modules.
        self.tables = tables = [table for table in found if table is not None]
        # Most tables are empty, and whether they still are is asked at once.
        self._empty = [table for table in tables if not table]
        self._still_holds = still_holds([table for table in tables if table])

    def unchanged(self) -> bool:
        """True if nothing was added, removed or replaced."""
        return not any(self._empty) and self._still_holds()


class _Cell:
    """One parameter or buffer: the host's tensor and the tensor programs read and write.

    While the state is shared, the second is a detached alias of the first, made again when
    `tensor.data` was assigned.
    """

    def __init__(self, entry: StateTensor, *, resident: bool) -> None:
        self.entry = entry
        self.host = host = entry.tensor
        _check_initialised(entry)
        self._shape, self._stride, self._dtype = host.shape, host.stride(), host.dtype
        self._requires_grad = host.requires_grad
        self._pointer = host.data_ptr()
        self.version = -1
        self.device = _narrowed(host) if resident else host.detach()

    def same_kind(self) -> bool:
        """Is the host's tensor still of the shape, layout and dtype programs were compiled for?"""
        host = self.host
        return (
            host.shape == self._shape
            and host.stride() == self._stride
            and host.dtype is self._dtype
            and host.requires_grad is self._requires_grad
        )

    def follow(self) -> bool:
        """Follow an assignment to `tensor.data`; True if there was one."""
        pointer = self.host.data_ptr()
        if pointer == self._pointer:
            return False
        self._pointer = pointer
        self.device = self.host.detach()
        return True

    def unmoved(self) -> bool:
        """Is the host's tensor of the same kind, and in the memory that was last followed?"""
        return self.same_kind() and self.host.data_ptr() == self._pointer

    def edited(self) -> bool:
        """Was the host's tensor written to since the last `note_version`?"""
        return self.host._version != self.version

    def note_version(self) -> None:
        """From here on, writes are edits by the host."""
        self.version = self.host._version


class Weights:
    """The parameters and buffers of one executor, by name."""

    def __init__(
        self,
        state: ModuleState,
        *,
        resident: bool,
        replicas: int,
        module: nn.Module | None = None,
    ) -> None:
        self.state = state
        self.resident = resident
        self._module = module
        self._tables = None if module is None else HostTables(module)
        self._cells = {e.name: _Cell(e, resident=resident) for e in state.entries}
        self._copies: list[dict[str, torch.Tensor]] = [{} for _ in range(replicas)]
        self._written: set[str] = set()
        #: Counts how often the tensors of the rows were other ones.
        self.arrangement = 0
        self._arrange()

    def _arrange(self) -> None:
        """List what each replica reads, in the order of the state, and the memory it lies in."""
        self._rows = [
            [self._value(name, replica) for name in self._cells]
            for replica in range(len(self._copies))
        ]
        self.memory = {memory_of(tensor) for row in self._rows for tensor in row}
        self.arrangement += 1

    # The host's side

    def refresh(self) -> bool:
        """Follow the host before a step; False if its tensors are no longer those compiled for."""
        if self.resident:
            return True
        cells = self._cells.values()
        if self._tables is not None and not self._tables.unchanged():
            return False
        if not all(cell.same_kind() for cell in cells):
            return False
        moved = [cell for cell in cells if cell.follow()]
        edited = [n for n in self._written if len(self._copies) > 1 and self._cells[n].edited()]
        if edited:
            self._spread(edited)
        if moved:
            self._arrange()
        return True

    def hosts(self) -> list[torch.Tensor]:
        """The host's tensors, in the order of the state."""
        return [cell.host for cell in self._cells.values()]

    def still_held(self) -> bool:
        """Does the module hold the very tensors and children it held?"""
        return self._tables is None or self._tables.unchanged()

    def unmoved(self) -> bool:
        """Is everything where the last `refresh` found it?"""
        return self.still_held() and all(cell.unmoved() for cell in self._cells.values())

    def tables(self) -> list[dict[str, Any]]:
        """The dicts that the module holds its tensors and children in."""
        return [] if self._tables is None else self._tables.tables

    def after_step(self) -> None:
        """What the host writes from now on is an edit, which all replicas must see."""
        if len(self._copies) > 1 and not self.resident:
            for name in self._written:
                self._cells[name].note_version()

    def upload(self, names: Iterable[str] | None = None) -> None:
        """Copy host values to the device (all of them, or the named ones)."""
        chosen = list(self._cells) if names is None else list(names)
        if self.resident:
            logger.debug("Writing weights from host to IPU memory")
            self._find_replaced()
            with torch.no_grad():
                for name in chosen:
                    self._upload(self._cells[name])
        self._spread(self._written.intersection(chosen))
        self._arrange()

    def _upload(self, cell: _Cell) -> None:
        if cell.host.shape != cell.device.shape:
            raise _reshaped(cell)
        cell.device.copy_(cell.host)

    def download(self) -> None:
        """Copy device values to the host."""
        if not self.resident:
            return
        logger.debug("Writing weights from IPU to host")
        self._find_replaced()
        with torch.no_grad():
            for cell in self._cells.values():
                if cell.host.shape != cell.device.shape:
                    raise _reshaped(cell)
                cell.host.copy_(cell.device)

    def _find_replaced(self) -> None:
        """Take over tensors that replaced others on the host, by name."""
        if self._module is None or self._tables is None or self._tables.unchanged():
            return
        self._tables = HostTables(self._module)
        present = ModuleState.of(self._module).tensors()
        for name, cell in self._cells.items():
            cell.host = present.get(name, cell.host)

    # The device's side

    def device_state(self) -> ModuleState:
        """The state as programs see it: the host's entries, with the device's dtypes."""
        if not self.resident:
            return self.state
        cells = self._cells.values()
        return ModuleState(tuple(replace(c.entry, dtype=c.device.dtype) for c in cells))

    def written(self, names: Iterable[str]) -> None:
        """These are written by a program: from now on each replica has its own."""
        buffers = {n for n in names if self._cells[n].entry.kind is not InputKind.PARAMETER}
        self._spread(buffers - self._written)
        self._written |= buffers
        self._arrange()
        self.after_step()

    def _spread(self, names: Iterable[str]) -> None:
        for copies in self._copies[1:]:
            for name in names:
                main = self._cells[name].device
                if name in copies:
                    copies[name].copy_(main)
                else:
                    copies[name] = main.clone()

    def whole(self, name: str) -> torch.Tensor:
        """The tensor with the values of all groups of replicas, as the optimizer updates it."""
        return self._cells[name].device

    def row(self, replica: int) -> list[torch.Tensor]:
        """What a replica reads and writes, in the order of the state."""
        return self._rows[replica]

    def _value(self, name: str, replica: int) -> torch.Tensor:
        cell = self._cells[name]
        if cell.entry.groups is not None:
            return cell.device[cell.entry.groups[replica]]
        return self._copies[replica].get(name, cell.device)


def _check_initialised(entry: StateTensor) -> None:
    if nn.parameter.is_lazy(entry.tensor):
        raise CaptureError(
            f"{entry.kind.value} {entry.name!r} has no shape yet (a lazy module)",
            fix="call the model once on the CPU before wrapping it",
        )


def memory_of(tensor: torch.Tensor) -> int:
    """The address of the memory a tensor is a view of."""
    return tensor.untyped_storage().data_ptr()


def _narrowed(tensor: torch.Tensor) -> torch.Tensor:
    dtype = _NARROWED.get(tensor.dtype, tensor.dtype)
    return tensor.detach().to(dtype).clone(memory_format=torch.preserve_format)


def _reshaped(cell: _Cell) -> StateError:
    host, device = list(cell.host.shape), list(cell.device.shape)
    return StateError(
        f"{cell.entry.name!r} changed shape on the host to {host}; the device has {device}",
        fix="call destroy() before changing shapes",
    )
