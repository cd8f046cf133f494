"""The optimizer of an executor as the user controls it: `setOptimizer`, loss scaling, state.

By default every attribute may change at any time. In strict mode PopTorch's rules hold: values are
taken when `setOptimizer` is called, unknown attributes are warned about, and the type of update
rule is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pantile.enums import MeanReductionStrategy
from pantile.errors import OptimizerError
from pantile.optim import Optimizer
from pantile.optim.attributes import OptimizerAttributes, read_attributes
from pantile.optim.supported import check_supported
from pantile.options import Options
from pantile.runtime.optimizer import Update


class OptimizerControl:
    """Owns the optimizer of one training executor."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._strict: bool = options.is_strict
        self._update: Update | None = None
        self._seen: OptimizerAttributes | None = None
        self.optimizer: torch.optim.Optimizer

    def set(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        compiled: bool,
        update: Update | None = None,
    ) -> None:
        """Take over an optimizer's values."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise OptimizerError(
                f"optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer",
                fix="pass an instance such as poptorch.optim.SGD(model.parameters(), lr=0.01)",
            )
        check_supported(optimizer, strict=self._strict)
        _check_numbers(optimizer)
        self._check_mean_strategy(optimizer, compiled=compiled)
        self._note_attributes(optimizer)
        previous = self.__dict__.get("optimizer")
        self.optimizer = optimizer
        if update is not None:
            if isinstance(previous, Optimizer) and previous is not optimizer:
                previous.state_dict()
                previous.detach_state_source()
            update.replace(optimizer)
            self._attach_state(update)

    def _note_attributes(self, optimizer: torch.optim.Optimizer) -> None:
        attributes = read_attributes(
            optimizer, automatic_loss_scaling=self._options.Training.automatic_loss_scaling
        )
        self._seen = attributes

    def _check_mean_strategy(self, optimizer: torch.optim.Optimizer, *, compiled: bool) -> None:
        """Half accumulators need a running mean; a compiled program cannot change over."""
        if compiled and self._half(optimizer) != self._half(self.optimizer):
            raise OptimizerError(
                "the accumulator type asks for another mean reduction strategy, but the model is "
                "already compiled",
                fix="call destroy() and set the optimizer before the model is compiled",
            )

    @staticmethod
    def _half(optimizer: torch.optim.Optimizer) -> bool:
        combined = bool(getattr(optimizer, "use_combined_accum", False))
        return getattr(optimizer, "accum_type", None) is torch.float16 and not combined

    @property
    def needs_running_mean(self) -> bool:
        """True if the accumulators are half: a sum could overflow."""
        return self._half(self.optimizer)

    @property
    def mean_strategy(self) -> MeanReductionStrategy:
        """The strategy in force."""
        if self.needs_running_mean:
            return MeanReductionStrategy.Running
        training = self._options.Training
        return MeanReductionStrategy(training.meanAccumulationAndReplicationReductionStrategy)

    @property
    def accumulator_type(self) -> torch.dtype | None:
        """The dtype gradients are accumulated in; None keeps the gradient's."""
        kind: torch.dtype | None = getattr(self.optimizer, "accum_type", None)
        return kind

    @property
    def loss_scaling(self) -> float:
        """The factor on the loss gradient."""
        return float(getattr(self.optimizer, "loss_scaling", None) or 1.0)

    # The optimizer's state, for poptorch.optim

    def attach(self, update: Update, executor: Any) -> None:
        """The executor is compiled: the device holds the state from now on."""
        self._update = update
        self._attach_state(update)

    def _attach_state(self, update: Update) -> None:
        if isinstance(self.optimizer, Optimizer):
            self.optimizer.attach_state_source(DeviceOptimizerState(update, strict=self._strict))

    def before_run(self) -> None:
        """Upload a state that was loaded since the last run."""
        if isinstance(self.optimizer, Optimizer):
            self.optimizer.upload_state()

    def after_run(self) -> None:
        """What was read of the state is out of date."""
        if isinstance(self.optimizer, Optimizer):
            self.optimizer.device_state_changed()

    def read_state(self) -> None:
        """Bring the state to the host."""
        if isinstance(self.optimizer, Optimizer) and self._update is not None:
            self.optimizer.state_dict()

    def detach(self) -> None:
        """The device lets the state go."""
        if isinstance(self.optimizer, Optimizer):
            self.optimizer.detach_state_source()
        self._update = None


class DeviceOptimizerState:
    """PopTorch's view of the state: tensors and scalars by name (spec 2.5)."""

    def __init__(self, update: Update, *, strict: bool) -> None:
        self._update = update
        self.strict = strict

    def read(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """All state tensors and hyper-parameters, copied."""
        update, state = self._update, {}
        for parameter, entries in update.bound.state.items():
            for key, value in entries.items():
                name = f"{_accumulator(update.bound, key)}___{update.names[id(parameter)]}"
                state[name] = torch.as_tensor(value).detach().clone()
        return state, self._parameters()

    def _parameters(self) -> dict[str, torch.Tensor]:
        update = self._update
        found = {"lossScaling_FLOAT": torch.tensor(update.loss_scaling)}
        for group in update.bound.param_groups:
            for parameter in group["params"]:
                name = update.names[id(parameter)]
                for key, value in _scalars(update.bound, group, update.loss_scaling).items():
                    found[f"{key}___specific___{name}"] = torch.tensor(float(value))
        return found

    def write(
        self, ipu_state: Mapping[str, torch.Tensor], ipu_param: Mapping[str, torch.Tensor]
    ) -> None:
        """Upload state tensors; entries that are not given keep their values."""
        update = self._update
        for parameter, name in _by_name(update).items():
            entries = update.bound.state[parameter]
            for key in _KEYS.get(type(update.bound).__name__, ()):
                source = ipu_state.get(f"{_accumulator(update.bound, key)}___{name}")
                if source is not None:
                    entries[key] = source.detach().clone()
            if not entries:
                del update.bound.state[parameter]


_KEYS: Mapping[str, tuple[str, ...]] = {
    "SGD": ("momentum_buffer",),
    "Adam": ("step", "exp_avg", "exp_avg_sq"),
    "AdamW": ("step", "exp_avg", "exp_avg_sq"),
    "LAMB": ("step", "exp_avg", "exp_avg_sq"),
    "RMSprop": ("step", "square_avg", "grad_avg", "momentum_buffer"),
}


def _by_name(update: Update) -> dict[torch.Tensor, str]:
    return {p: update.names[id(p)] for g in update.bound.param_groups for p in g["params"]}


def _accumulator(optimizer: torch.optim.Optimizer, key: str) -> str:
    """PopTorch's name for a kind of state."""
    if key in ("exp_avg", "square_avg") or (
        key == "momentum_buffer" and type(optimizer).__name__ == "SGD"
    ):
        return "Accl1"
    if key in ("exp_avg_sq", "momentum_buffer"):
        return "Accl2"
    return {"grad_avg": "Accl3", "step": "Step"}.get(key, key)


def _scalars(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], scale: float
) -> dict[str, float]:
    """PopTorch's names and values for the hyper-parameters of a group."""
    lr, decay = float(group["lr"]), float(group.get("weight_decay", 0.0))
    if type(optimizer).__name__ == "SGD":
        kept = 1.0 - float(group.get("dampening", 0.0))
        return {
            "scaledLearningRate0": lr * kept / scale,
            "weightDecayScaleFactor0": 1.0 - lr * kept * decay,
            "momentum": float(group.get("momentum", 0.0)),
        }
    return {"learningRate": lr, "weightDecay": decay}


def _check_numbers(optimizer: torch.optim.Optimizer) -> None:
    for index, group in enumerate(optimizer.param_groups):
        lr = group.get("lr", 0.0)
        value = float(lr) if not isinstance(lr, torch.Tensor) or lr.numel() == 1 else 0.0
        if not 0.0 <= value < float("inf"):
            raise OptimizerError(
                f"lr of parameter group {index} is {value}; it must be finite and not negative",
                fix=f"set optimizer.param_groups[{index}]['lr'] to a number such as 0.01",
            )

