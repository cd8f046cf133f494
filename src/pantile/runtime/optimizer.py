"""The optimizer of a training executor: which update program runs, on which state.

By default the user's optimizer object *is* the device's: its hyper-parameters are read at every
step, its state lives in `optimizer.state`, ready to be saved or loaded with plain torch. In strict
mode the device has its own copy, refreshed by `setOptimizer`.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pantile.capture.hyper import UpdateProgram, UpdateRequest, state_name, structure_of
from pantile.errors import ForeignParameter
from pantile.lowering.reference import ReferenceExecutable, guards_hold
from pantile.passes.pipeline import run_passes
from pantile.program.spec import Input, InputKind, TensorSpec
from pantile.runtime.weights import Weights


@dataclass(frozen=True, eq=False)
class _Variant:
    update: UpdateProgram
    gradients: tuple[str, ...]
    divisor: int
    scaled: bool
    executable: ReferenceExecutable


class Update:
    """Applies accumulated gradients to the weights."""

    def __init__(self, optimizer: torch.optim.Optimizer, weights: Weights, *, strict: bool) -> None:
        self._weights = weights
        self._strict = strict
        self._variants: list[_Variant] = []
        self.names = {id(e.tensor): e.name for e in weights.state.entries}
        self.captures = 0
        self._bind(optimizer)

    def _bind(self, optimizer: torch.optim.Optimizer) -> None:
        self._check_parameters(optimizer)
        self.user = optimizer
        self.bound = _detached(optimizer) if self._strict else optimizer

    def _check_parameters(self, optimizer: torch.optim.Optimizer) -> None:
        for index, group in enumerate(optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                if id(parameter) not in self.names:
                    raise ForeignParameter(
                        f"parameter {position} of group {index} of the optimizer, of shape "
                        f"{list(parameter.shape)}, does not belong to the wrapped model",
                        fix="build the optimizer from model.parameters() of the model you wrap",
                    )

    def replace(self, optimizer: torch.optim.Optimizer) -> None:
        """Use another optimizer's values; state goes on where the rule is the same."""
        if optimizer is self.user and not self._strict:
            self._check_parameters(optimizer)
            return
        old = self.bound
        self._bind(optimizer)
        if type(old) is type(optimizer) and not self.bound.state:
            for parameter, state in list(old.state.items()):
                self.bound.state[parameter] = state
                if not self._strict:
                    old.state[parameter] = {k: _copied(v) for k, v in state.items()}

    @property
    def loss_scaling(self) -> float:
        """The factor on the loss gradient."""
        return float(getattr(self.bound, "loss_scaling", None) or 1.0)

    def apply(self, gradients: Mapping[str, torch.Tensor], *, divisor: int, scaled: bool) -> None:
        """One weight update."""
        variant, values = self._variant(gradients, divisor, scaled)
        results = variant.executable.run(values)
        for output, result in zip(variant.executable.program.outputs, results, strict=True):
            key, _, name = output.name.partition("/")
            self.bound.state[self._parameter(name)][key] = result.clone()
        # Schedulers warn when they believe that no step was taken.
        self.user._opt_called = True  # type: ignore[attr-defined]

    def _parameter(self, name: str) -> torch.Tensor:
        return next(e.tensor for e in self._weights.state.entries if e.name == name)

    def _variant(
        self, gradients: Mapping[str, torch.Tensor], divisor: int, scaled: bool
    ) -> tuple[_Variant, list[Any]]:
        structure = structure_of(self.bound, self.names)
        names = tuple(gradients)
        for variant in self._variants:
            known = (variant.gradients, variant.divisor, variant.scaled)
            if known == (names, divisor, scaled) and variant.update.structure == structure:
                values = self._values(variant.update, gradients)
                if guards_hold(variant.executable.program, values):
                    return variant, values
        variant = self._capture(gradients, divisor, scaled)
        self._variants.append(variant)
        return variant, self._values(variant.update, gradients)

    def _capture(
        self, gradients: Mapping[str, torch.Tensor], divisor: int, scaled: bool
    ) -> _Variant:
        # Imported late for the same reason as in compile.py: tracing needs sympy.
        from pantile.capture.optimizer import capture_update

        specs = {name: TensorSpec.of(g) for name, g in gradients.items() if name in self._known()}
        request = UpdateRequest(self.bound, self.names, specs, divisor, scaled)
        update = capture_update(request)
        self.captures += 1
        program = run_passes(update.program)
        return _Variant(update, tuple(gradients), divisor, scaled, ReferenceExecutable(program))

    def _known(self) -> set[str]:
        return {self.names[id(p)] for g in self.bound.param_groups for p in g["params"]}

    def _values(self, update: UpdateProgram, gradients: Mapping[str, torch.Tensor]) -> list[Any]:
        hypers = {hyper.name: hyper for hyper in update.hypers}
        state = {
            state_name(key, self.names[id(parameter)]): value
            for parameter, entries in self.bound.state.items()
            for key, value in entries.items()
        }
        return [self._value(e, hypers, state, gradients) for e in update.program.inputs]

    def _value(
        self,
        entry: Input,
        hypers: Mapping[str, Any],
        state: Mapping[str, Any],
        gradients: Mapping[str, torch.Tensor],
    ) -> Any:
        match entry.kind:
            case InputKind.PARAMETER:
                return self._weights.whole(entry.name)
            case InputKind.GRADIENT:
                return gradients[entry.name]
            case InputKind.OPTIMIZER:
                return state[entry.name]
        if entry.name == "loss_scaling":
            return torch.tensor(self.loss_scaling)
        return hypers[entry.name].read(self.bound)


def _detached(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """A copy with its own hyper-parameters and state, over the same parameters."""
    twin = copy.copy(optimizer)
    twin.__dict__["param_groups"] = [
        {k: (v if k == "params" else copy.copy(v)) for k, v in group.items()}
        for group in optimizer.param_groups
    ]
    twin.__dict__["state"] = defaultdict(
        dict,
        {p: {k: _copied(v) for k, v in s.items()} for p, s in optimizer.state.items()},
    )
    return twin


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)
