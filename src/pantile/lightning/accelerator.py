"""`IPUAccelerator`: what Lightning asks about the device."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch

from pantile.lightning.namespaces import Made, Namespace, made_class

DEVICES = "PANTILE_LIGHTNING_DEVICES"
_SMALLEST_SYSTEM = 4
"""What `devices="auto"` was on hardware: the smallest unit that was sold had four IPUs."""


def parse_devices(devices: Any, misconfiguration: type[Exception]) -> int:
    """The number of IPUs: 8 or "8"."""
    if isinstance(devices, (list, tuple)):
        raise misconfiguration(
            f"IPUs are counted, not chosen: devices={devices!r} is a list. "
            f"Fix: pass devices={len(devices)}."
        )
    try:
        count = int(devices)
    except (TypeError, ValueError):
        count = 0
    if isinstance(devices, bool) or count < 1:
        raise misconfiguration(
            f"devices={devices!r} is not a number of IPUs. Fix: pass a positive integer or 'auto'."
        )
    return count


class IPUAcceleratorMembers(Made):
    """The members of `IPUAccelerator`, for either namespace."""

    namespace: Namespace
    strategy: Any = None

    def setup_device(self, device: torch.device) -> None:
        """Nothing to do: programs find their device themselves."""

    def setup(self, trainer: Any) -> None:
        """Refuse a strategy that would run the model eagerly."""
        if not getattr(trainer.strategy, "is_ipu_strategy", False):
            found = type(trainer.strategy).__name__
            raise self.namespace.find("utilities.exceptions:MisconfigurationException")(
                f"accelerator='ipu' was combined with {found}, which would run the model on the "
                "CPU. Fix: remove strategy=..., or pass strategy=pantile.lightning.IPUStrategy()."
            )

    def teardown(self) -> None:
        """Nothing to give back."""

    def get_device_stats(self, device: Any) -> dict[str, float]:
        """What the compiled programs did so far, for DeviceStatsMonitor."""
        return {} if self.strategy is None else dict(self.strategy.statistics())

    @staticmethod
    def get_parallel_devices(devices: int) -> list[torch.device]:
        """Labels: tensors stay on the CPU."""
        return [torch.device("ipu", i) for i in range(devices)]

    @staticmethod
    def auto_device_count() -> int:
        """The devices of `devices="auto"`; PANTILE_LIGHTNING_DEVICES says otherwise."""
        return int(os.environ.get(DEVICES, _SMALLEST_SYSTEM))

    @staticmethod
    def is_available() -> bool:
        """Always: it is software."""
        return True

    @staticmethod
    def name() -> str:
        """The name of the accelerator."""
        return "ipu"

    @classmethod
    def register_accelerators(cls, registry: Any) -> None:
        """Make the name known to a registry of Lightning."""
        registry.register("ipu", cls, description="Software IPUs", override=True)


@cache
def accelerator_class(namespace: Namespace) -> Any:
    """`IPUAccelerator` for one namespace."""
    misconfiguration = namespace.find("utilities.exceptions:MisconfigurationException")

    def parse(devices: Any) -> int:
        return parse_devices(devices, misconfiguration)

    base = namespace.find("accelerators.accelerator:Accelerator")
    bases = (IPUAcceleratorMembers, base)
    members = {"parse_devices": staticmethod(parse)}
    return made_class("IPUAccelerator", accelerator_class, namespace, *bases, **members)
