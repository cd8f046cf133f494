"""The optimizer of an executor as the user controls it: `setOptimizer`, loss scaling, state.

By default every attribute may change at any time. In strict mode PopTorch's rules hold: values are
taken when `setOptimizer` is called, constants are embedded when the model is compiled, and
attributes that the first optimizer did not have are warned about.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping
from typing import Protocol

import torch

from pantile.enums import ConnectionType, MeanReductionStrategy
from pantile.errors import OptimizerError
from pantile.logging import logger
from pantile.optim import Optimizer
from pantile.optim.attributes import (
    Attribute,
    AttributeWatch,
    OptimizerAttributes,
    read_attributes,
)
from pantile.optim.report import report_lines
from pantile.optim.supported import check_supported
from pantile.options import Options
from pantile.runtime.device_state import DeviceOptimizerState
from pantile.runtime.optimizer import Update


class HoldsWeights(Protocol):
    """What is asked of the executor: to bring weights home before the device's are written."""

    def copyWeightsToHostIfNeeded(self) -> bool: ...


class OptimizerControl:
    """Owns the optimizer of one training executor."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._strict: bool = options.is_strict
        self._update: Update | None = None
        self._seen: OptimizerAttributes | None = None
        self._watch: AttributeWatch | None = None
        self._told: tuple[str, ...] = ()
        self._executor: weakref.ref[HoldsWeights] | None = None
        self.optimizer: torch.optim.Optimizer

    def set(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        compiled: bool,
        update: Update | None = None,
    ) -> None:
        """Take over an optimizer's values."""
        check_supported(optimizer, strict=self._strict)
        _check_numbers(optimizer)
        self._check_mean_strategy(optimizer, compiled=compiled)
        changed = self._note_attributes(optimizer, compiled=compiled)
        previous: torch.optim.Optimizer | None = self.__dict__.get("optimizer")
        if update is not None:
            if isinstance(previous, Optimizer) and previous is not optimizer:
                previous.state_dict()
                previous.detach_state_source()
            if changed or not self._strict:
                update.replace(optimizer)
            self._tell()
        self.optimizer = optimizer
        if update is not None and previous is not optimizer:
            self._attach_state(update)

    # PopTorch's rules about attributes

    def _note_attributes(self, optimizer: torch.optim.Optimizer, *, compiled: bool) -> bool:
        """In strict mode, warn and refuse as PopTorch does. True if a value changed."""
        if not self._strict:
            return True
        automatic = self._options.Training.automatic_loss_scaling
        attributes = read_attributes(optimizer, automatic_loss_scaling=automatic)
        if self._watch is None:
            self._watch = AttributeWatch(optimizer)
        self._watch.check(optimizer, relaxed=self._options.relax_optimizer_checks)
        if compiled and self._seen is not None:
            _check_constants(self._seen, attributes)
        changed = attributes != self._seen
        self._seen = attributes
        return changed

    def _tell(self) -> None:
        """In strict mode, write to the log what the device gets, if it is not what it has."""
        if self._seen is None:
            return
        lines = report_lines(self._seen)
        if lines != self._told:
            for line in lines:
                logger.debug(line)
        self._told = lines

    def _check_mean_strategy(self, optimizer: torch.optim.Optimizer, *, compiled: bool) -> None:
        """Half accumulators need a running mean; a compiled program cannot change over."""
        training, running = self._options.Training, MeanReductionStrategy.Running
        if not _accumulates_in_half(optimizer) or self.mean_strategy is running:
            return
        if compiled:
            raise OptimizerError(
                "accum_type=torch.float16 needs the mean reduction strategy Running, but the "
                f"model is already compiled with {self.mean_strategy.name}",
                fix="call destroy() and set the optimizer before the model is compiled",
            )
        # The options are the executor's own copy, frozen for the user only.
        training._unfreeze()
        training.setMeanAccumulationAndReplicationReductionStrategy(running)
        training._freeze()

    @property
    def needs_running_mean(self) -> bool:
        """True if the accumulators are half: a sum could overflow."""
        return _accumulates_in_half(self.optimizer)

    @property
    def mean_strategy(self) -> MeanReductionStrategy:
        """The strategy in force."""
        training = self._options.Training
        return MeanReductionStrategy(training.meanAccumulationAndReplicationReductionStrategy)

    @property
    def accumulator_type(self) -> torch.dtype | None:
        """The dtype gradients are accumulated in; None keeps the gradient's."""
        kind: torch.dtype | None = getattr(self.optimizer, "accum_type", None)
        if kind is None and isinstance(self.optimizer, Optimizer) and self._update is not None:
            return torch.float32 if self._update.has_narrow else None
        return kind

    @property
    def loss_scaling(self) -> float:
        """The factor on the loss gradient."""
        bound = self.optimizer if self._update is None else self._update.bound
        return float(getattr(bound, "loss_scaling", None) or 1.0)

    # The optimizer's state, for poptorch.optim

    def attach(self, update: Update, executor: HoldsWeights) -> None:
        """The executor is compiled: the device holds the state from now on."""
        self._update = update
        self._executor = weakref.ref(executor)
        self._attach_state(update)
        self._tell()

    def _attach_state(self, update: Update) -> None:
        offline = self._options.connection_type == ConnectionType.Never
        if isinstance(self.optimizer, Optimizer) and not offline:
            self.optimizer.attach_state_source(DeviceOptimizerState(update, strict=self._strict))

    @property
    def keeps_state(self) -> bool:
        """Does the optimizer want to know of runs?"""
        return isinstance(self.optimizer, Optimizer)

    def before_run(self) -> None:
        """Upload a state that was loaded since the last run."""
        if not isinstance(self.optimizer, Optimizer):
            return
        executor = self._executor() if self._executor is not None else None
        if self._strict and self.optimizer.host_state_is_dirty and executor is not None:
            executor.copyWeightsToHostIfNeeded()
        self.optimizer.upload_state()

    def after_run(self) -> None:
        """What was read of the state is out of date."""
        if isinstance(self.optimizer, Optimizer):
            self.optimizer.device_state_changed()

    def read_state(self) -> None:
        """Bring the state to the host."""
        if isinstance(self.optimizer, Optimizer) and self._update is not None:
            self.optimizer.state_dict()

    def let_go(self) -> None:
        """The device is released: the state that was read goes back when it is attached again."""
        if isinstance(self.optimizer, Optimizer):
            self.optimizer.upload_again()

    def detach(self) -> None:
        """The device lets the state go; a device of its own gets it back when compiled again."""
        if isinstance(self.optimizer, Optimizer):
            self.optimizer.detach_state_source(upload_again=self._strict)
        self._update, self._told = None, ()


def _accumulates_in_half(optimizer: torch.optim.Optimizer) -> bool:
    combined = bool(getattr(optimizer, "use_combined_accum", False))
    return getattr(optimizer, "accum_type", None) is torch.float16 and not combined


def _check_constants(compiled: OptimizerAttributes, now: OptimizerAttributes) -> None:
    """What was a constant when the model was compiled must have the same value."""
    if compiled.type_name != now.type_name:
        return
    tables = _tables(compiled)
    for (where, before), (_, after) in zip(tables, _tables(now), strict=False):
        for name, attribute in before.items():
            new = after.get(name, attribute)
            if attribute.constant and new.value != attribute.value:
                raise OptimizerError(
                    f"{name!r} of {where} is a constant of the compiled model: it cannot change "
                    f"from {attribute.value} to {new.value}",
                    fix=f"pass {name} to the constructor of a poptorch.optim optimizer, or mark it "
                    f"with variable_attrs.markAsVariable({name!r}), before compiling",
                )


def _tables(attributes: OptimizerAttributes) -> Iterator[tuple[str, Mapping[str, Attribute]]]:
    yield "the optimizer", attributes.globals
    for index, group in enumerate(attributes.groups):
        yield f"group {index}", group


def _check_numbers(optimizer: torch.optim.Optimizer) -> None:
    for index, group in enumerate(optimizer.param_groups):
        lr = group.get("lr", 0.0)
        value = float(lr) if not isinstance(lr, torch.Tensor) or lr.numel() == 1 else 0.0
        if not 0.0 <= value < float("inf"):
            raise OptimizerError(
                f"lr of parameter group {index} is {value}; it must be finite and not negative",
                fix=f"set optimizer.param_groups[{index}]['lr'] to a number such as 0.01",
            )
        for key, setting in group.items():
            numbers = setting if isinstance(setting, tuple) else (setting,)
            if any(isinstance(number, float) and math.isnan(number) for number in numbers):
                raise OptimizerError(
                    f"{key} of parameter group {index} is {setting}",
                    fix=f"set optimizer.param_groups[{index}][{key!r}] to finite numbers",
                )
