"""Where parameters and buffers live.

    shared     the host module's tensors are the device's: nothing to copy, edits are seen at once
    resident   the device has its own (strict mode): copied when asked, or on first host access

Buffers that a program writes exist once per replica; replica 0 is the one the host sees.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from pantile.capture.module_state import ModuleState
from pantile.errors import StateError
from pantile.program.spec import InputKind, TensorSpec

_NARROWED = {torch.float64: torch.float32, torch.bfloat16: torch.float32}


class Weights:
    """The parameters and buffers of one executor, by name."""

    def __init__(self, state: ModuleState, *, resident: bool, replicas: int) -> None:
        self.state = state
        self.resident = resident
        self._host = {entry.name: entry for entry in state.entries}
        self._device: dict[str, torch.Tensor] = {}
        self._replicas: list[dict[str, torch.Tensor]] = [{} for _ in range(replicas - 1)]
        self._written: set[str] = set()
        if resident:
            self.upload()

    def upload(self, names: Iterable[str] | None = None) -> None:
        """Copy host values to the device (all of them, or the named ones)."""
        chosen = list(self._host) if names is None else list(names)
        if self.resident:
            for name in chosen:
                self._device[name] = self._narrowed(self._host[name].tensor)
        self._spread(self._written.intersection(chosen))

    def download(self) -> None:
        """Copy device values to the host."""
        if not self.resident:
            return
        with torch.no_grad():
            for name, tensor in self._device.items():
                host = self._host[name].tensor
                if host.shape != tensor.shape:
                    raise StateError(
                        f"{name!r} changed shape on the host to {list(host.shape)}; the device "
                        f"has {list(tensor.shape)}",
                        fix="call destroy() before changing shapes",
                    )
                host.copy_(tensor)

    def _narrowed(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = _NARROWED.get(tensor.dtype, tensor.dtype)
        return tensor.detach().to(dtype).clone(memory_format=torch.preserve_format)

    def device_state(self) -> ModuleState:
        """The state as programs see it: the host's entries, with the device's dtypes."""
        if not self.resident:
            return self.state
        return ModuleState(
            tuple(replace(e, dtype=self._device[e.name].dtype) for e in self.state.entries)
        )

    def written(self, names: Iterable[str]) -> None:
        """These are written by a program: from now on each replica has its own."""
        buffers = {n for n in names if self._host[n].kind is not InputKind.PARAMETER}
        self._spread(buffers - self._written)
        self._written |= buffers

    def _spread(self, names: Iterable[str]) -> None:
        for copies in self._replicas:
            copies.update({name: self.value(name).clone() for name in names})

    def whole(self, name: str) -> torch.Tensor:
        """The tensor with the values of all groups of replicas, as the optimizer updates it."""
        return self._device[name] if self.resident else self._host[name].tensor.detach()

    def value(self, name: str, replica: int = 0) -> torch.Tensor:
        """The tensor a replica reads and writes."""
        main = self.whole(name)
        groups = self._host[name].groups
        if groups is not None:
            return main[groups[replica]]
        if replica == 0 or name not in self._written:
            return main
        return self._replicas[replica - 1][name]

    def matches(self, state: ModuleState) -> bool:
        """True while the host module still holds the very tensors this was made for."""
        mine = self.state.entries
        return len(mine) == len(state.entries) and all(
            a.tensor is b.tensor and TensorSpec.of(a.tensor) == TensorSpec.of(b.tensor)
            for a, b in zip(mine, state.entries, strict=True)
        )

