"""Fabric on software IPUs: `Fabric(accelerator="ipu")` and a compiled step.

    model, optimizer = fabric.setup(model, optimizer)
    step = fabric.strategy.compile_step(train_step)      # forward, backward, optimizer.step()
    for batch in loader:
        loss = step(batch)

With Fabric the loop is the user's. What is not called through a compiled step runs on the CPU, and
says so once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import nn

from pantile.lightning.accelerator import IPUAcceleratorMembers, parse_devices
from pantile.lightning.compiled_step import CompiledStep
from pantile.lightning.loaders import combined
from pantile.lightning.precision import PRECISIONS
from pantile.logging import logger
from pantile.options import Options

_originals: dict[str, Any] = {}


class FabricStrategyMembers:
    """The members of Fabric's `IPUStrategy`."""

    is_ipu_strategy = True
    strategy_name = "ipu_strategy"
    is_global_zero = True
    global_rank = local_rank = node_rank = 0
    world_size = 1
    fabric: str

    def __init__(self, options: Options | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._options = options
        self._modules: list[nn.Module] = []
        self._own_optimizers: list[torch.optim.Optimizer] = []
        self._in_compiled_step = False
        self._told = False

    @property
    def root_device(self) -> torch.device:
        """Tensors live on the host."""
        return torch.device("cpu")

    @property
    def precision(self) -> Any:
        """Fabric's own plugin, for the CPU."""
        found = self.__dict__.get("_ipu_precision") or self.__dict__.get("_precision")
        return found or import_module(f"{self.fabric}.plugins.precision.precision").Precision()

    @precision.setter
    def precision(self, plugin: Any) -> None:
        name = getattr(plugin, "precision", "32-true")
        if name not in PRECISIONS or name == "16-mixed":
            raise ValueError(
                f"`Fabric(accelerator='ipu', precision={name!r})` is not supported. `precision` "
                f"must be one of: {', '.join(p for p in PRECISIONS if p != '16-mixed')}."
            )
        if name.endswith("mixed"):
            mixed = import_module(f"{self.fabric}.plugins.precision.amp").MixedPrecision
            plugin = mixed(name, "cpu")
        self.__dict__["_ipu_precision"] = plugin

    @property
    def parallel_devices(self) -> list[torch.device]:
        """Labels."""
        return self.__dict__.get("_parallel_devices") or []

    @parallel_devices.setter
    def parallel_devices(self, devices: Sequence[Any] | None) -> None:
        count = len(devices or ())
        self.__dict__["_parallel_devices"] = [torch.device("ipu", i) for i in range(count)]

    def process_dataloader(self, dataloader: Any) -> Any:
        """One batch for each call: those of all replicas, which a step sees as one."""
        return combined(dataloader, max(1, len(self.parallel_devices)), training=False)

    # What the user sets up

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Remembered for compile_step."""
        self._modules.append(module)
        return module

    def setup_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Remembered for compile_step."""
        self._own_optimizers.append(optimizer)
        return optimizer

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Any], scheduler: Any = None
    ) -> tuple[nn.Module, list[Any], Any]:
        """Both."""
        self.setup_module(module)
        return module, [self.setup_optimizer(o) for o in optimizers], scheduler

    def module_to_device(self, module: nn.Module) -> None:
        """The weights stay where they are."""

    def compile_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as one program; it may use every model and optimizer that was set up."""
        step = CompiledStep(
            function, self._modules, self._own_optimizers, self._options or Options()
        )

        def run(*args: Any, **kwargs: Any) -> Any:
            before, self._in_compiled_step = self._in_compiled_step, True
            try:
                return step(*args, **kwargs)
            finally:
                self._in_compiled_step = before

        run.__name__ = getattr(function, "__name__", "step")
        run.__doc__ = function.__doc__
        return run

    def backward(self, tensor: torch.Tensor, module: Any = None, *args: Any, **kwargs: Any) -> None:
        """As the user calls it; outside of a compiled step it runs on the CPU."""
        if not self._in_compiled_step and not self._told:
            self._told = True
            logger.warning(
                "fabric.backward() was called outside of a compiled step: this loop runs on the "
                "CPU. Compile it with fabric.strategy.compile_step(train_step)."
            )
        super().backward(tensor, module, *args, **kwargs)  # type: ignore[misc]

    def clip_gradients_norm(self, *args: Any, **kwargs: Any) -> Any:
        """Inside a compiled step a norm that is not finite is not an error: nobody can look."""
        if self._in_compiled_step:
            kwargs["error_if_nonfinite"] = False
        return super().clip_gradients_norm(*args, **kwargs)  # type: ignore[misc]

    # One process

    def all_reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """There is one process."""
        return tensor

    def all_gather(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """There is one process."""
        return tensor

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """There is one process."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """There is one process."""
        return obj


@cache
def fabric_strategy_class(fabric: str) -> Any:
    """Fabric's `IPUStrategy`."""
    base = import_module(f"{fabric}.strategies.single_device").SingleDeviceStrategy
    members = {"fabric": fabric, "__module__": __name__}
    return type("FabricIPUStrategy", (FabricStrategyMembers, base), members)


@cache
def fabric_accelerator_class(fabric: str) -> Any:
    """Fabric's `IPUAccelerator`."""
    base = import_module(f"{fabric}.accelerators.accelerator").Accelerator

    def parse(devices: Any) -> int:
        return parse_devices(devices, ValueError)

    members = {
        "parse_devices": staticmethod(parse),
        "auto_device_count": staticmethod(lambda: 1),
        "__module__": __name__,
    }
    return type("FabricIPUAccelerator", (IPUAcceleratorMembers, base), members)


def register_fabric(fabric: str = "lightning.fabric") -> None:
    """Make `Fabric(accelerator="ipu")` known; a second time does nothing."""
    if fabric in _originals:
        return
    accelerators = import_module(f"{fabric}.accelerators").ACCELERATOR_REGISTRY
    strategies = import_module(f"{fabric}.strategies").STRATEGY_REGISTRY
    accelerators.register("ipu", fabric_accelerator_class(fabric), override=True)
    strategy = fabric_strategy_class(fabric)
    strategies.register("ipu_strategy", strategy, "Compiled steps", override=True)
    connector = import_module(f"{fabric}.connector")._Connector
    _originals[fabric] = original = connector._choose_strategy

    def _choose_strategy(self: Any) -> Any:
        if isinstance(self.accelerator, IPUAcceleratorMembers):
            return strategy.strategy_name
        return original(self)

    connector._choose_strategy = _choose_strategy


def unregister_fabric(fabric: str = "lightning.fabric") -> None:
    """Leave Fabric as it was."""
    original = _originals.pop(fabric, None)
    if original is not None:
        import_module(f"{fabric}.connector")._Connector._choose_strategy = original
        import_module(f"{fabric}.accelerators").ACCELERATOR_REGISTRY.pop("ipu", None)
        import_module(f"{fabric}.strategies").STRATEGY_REGISTRY.pop("ipu_strategy", None)
