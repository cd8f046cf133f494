"""The optimizer of a training executor: which update program runs, on which state.

    optimizer ──Layout still holds? ──yes──► Feed ──► guards hold? ──yes──► run
                       │ no                              │ no
                       └──────► a program of this structure, traced now if there is none ──► run

By default the user's optimizer object *is* the device's: its hyper-parameters are read at every
step, its state lives in `optimizer.state`, ready to be saved or loaded with plain torch. In strict
mode the device has its own copy, refreshed by `setOptimizer`.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pantile.capture.hyper import UpdateProgram, UpdateRequest, structure_of
from pantile.errors import ForeignParameter, OptimizerError
from pantile.lowering.reference import ReferenceExecutable
from pantile.optim import AdamW
from pantile.optim.accumulators import NARROW
from pantile.optim.initial_state import complete_state
from pantile.optim.supported import rule_name
from pantile.passes.automatic_loss_scaling import SCALE, automatic_loss_scaling
from pantile.passes.pipeline import run_passes
from pantile.program.program import Program
from pantile.program.spec import InputKind, TensorSpec
from pantile.runtime.loss_scale import LossScale
from pantile.runtime.numerics import Numerics
from pantile.runtime.update_guards import UpdateGuards
from pantile.runtime.update_values import Feed, Layout
from pantile.runtime.weights import Weights

_MOST_VARIANTS = 32
_NO_GRADIENTS: Mapping[str, torch.Tensor] = defaultdict(lambda: torch.empty(0))
"""Guards are decided by hyper-parameters and state: what stands for gradients does not matter."""


@dataclass(frozen=True)
class UpdateKind:
    """What an update is of, besides the optimizer: gradients, divisor, whether they are scaled.

    `watched` are the gradients that a loss scale adapts to, each the sum of `summed` ones.
    """

    gradients: tuple[str, ...]
    divisor: int
    scaled: bool
    watched: tuple[str, ...] = ()
    summed: int = 1


@dataclass(frozen=True, eq=False)
class UpdateVariant:
    """One traced update."""

    kind: UpdateKind
    update: UpdateProgram
    executable: ReferenceExecutable
    guards: UpdateGuards

    @property
    def program(self) -> Program:
        """What it computes."""
        return self.executable.program

    @property
    def creates_state(self) -> bool:
        """Is this an optimizer's first step, which makes the state that later ones update?"""
        return bool(self.program.outputs)


@dataclass(frozen=True, eq=False)
class Current:
    """The update of the last step, and what it was chosen for."""

    variant: UpdateVariant
    layout: Layout
    feed: Feed


HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
"""Where an optimizer keeps the functions that run before and after each update."""


class Update:
    """Applies accumulated gradients to the weights."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        weights: Weights,
        *,
        strict: bool,
        numerics: Numerics | None = None,
    ) -> None:
        self._weights = weights
        self._numerics = numerics or Numerics()
        self._strict = strict
        self._variants: list[UpdateVariant] = []
        self._current: Current | None = None
        self._tensors = {entry.name: entry.tensor for entry in weights.state.entries}
        self.names = {id(tensor): name for name, tensor in self._tensors.items()}
        #: Gradients of half parameters are accumulated in float32, unless asked otherwise.
        self.has_narrow = any(weights.whole(name).dtype in NARROW for name in self._tensors)
        self.captures = 0
        #: The scale of the loss, if it adapts.
        self.scale: LossScale | None = None
        self.bound = self._bind(optimizer)
        #: Which parameters are in which group: fixed here, whatever later optimizers say.
        self._groups = [list(group["params"]) for group in self.bound.param_groups]
        if self._numerics.scaling is not None:
            self.scale = LossScale(self._numerics.scaling, self.given_scale)

    def _bind(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimizer whose values and state are used."""
        self._check_parameters(optimizer)
        self.user = optimizer
        #: Hyper-parameters that came with a loaded state, by their names on the device.
        self.loaded: dict[str, torch.Tensor] = {}
        self._current = None
        return _detached(optimizer) if self._strict else optimizer

    def _check_parameters(self, optimizer: torch.optim.Optimizer) -> None:
        for index, group in enumerate(optimizer.param_groups):
            for position, parameter in enumerate(group["params"]):
                if id(parameter) not in self.names and parameter.numel():
                    raise ForeignParameter(
                        f"parameter {position} of group {index} of the optimizer, of shape "
                        f"{list(parameter.shape)}, does not belong to the wrapped model",
                        fix="build the optimizer from model.parameters() of the model you wrap",
                    )

    def replace(self, optimizer: torch.optim.Optimizer) -> None:
        """Use another optimizer's values; state goes on where the rule is the same."""
        if self._strict:
            self._take_values(optimizer)
            return
        if optimizer is self.user:
            self._check_parameters(optimizer)
            return
        old, self.bound = self.bound, self._bind(optimizer)
        if type(old) is type(optimizer) and not optimizer.state:
            for parameter, state in list(old.state.items()):
                optimizer.state[parameter] = state
                old.state[parameter] = {k: _copied(v) for k, v in state.items()}

    def _take_values(self, optimizer: torch.optim.Optimizer) -> None:
        """PopTorch's rule: the groups stay as they were compiled, only their values are new."""
        old = self.bound
        if len(optimizer.param_groups) != len(self._groups):
            raise OptimizerError(
                f"optimizer has {len(optimizer.param_groups)} parameter groups; the model was "
                f"compiled with {len(self._groups)}",
                fix="pass an optimizer with the same groups, or call destroy() and compile again",
            )
        self.bound = self._bind(optimizer)
        for new, parameters in zip(self.bound.param_groups, self._groups, strict=True):
            new["params"] = list(parameters)
        if rule_name(old) == rule_name(optimizer):
            self.bound.__dict__["state"] = old.state
            complete_state(self.bound, self.whole)

    def whole(self, parameter: torch.Tensor) -> torch.Tensor:
        """What the device holds of a parameter."""
        return self._weights.whole(self.names[id(parameter)])

    def groups_of(self, parameter: torch.Tensor) -> int:
        """How many groups of replicas have a value of their own; 0 if all share one."""
        name = self.names[id(parameter)]
        entry = next(e for e in self._weights.state.entries if e.name == name)
        return 0 if entry.groups is None else int(parameter.shape[0])

    @property
    def loss_scaling(self) -> float:
        """The factor on the loss gradient."""
        if self.scale is None:
            return self.given_scale
        self.scale.follow(self.given_scale)
        return self.scale.value

    @property
    def given_scale(self) -> float:
        """The optimizer's own factor, which an adapting scale starts from."""
        return float(getattr(self.bound, "loss_scaling", None) or 1.0)

    def scale_tensors(self) -> Mapping[str, torch.Tensor]:
        """The scale of the loss as programs read it, and write it where it adapts."""
        value = self.loss_scaling
        return {SCALE: torch.tensor(value)} if self.scale is None else self.scale.tensors

    # Running

    @property
    def has_hooks(self) -> bool:
        """Does the user want Python to run before or after each update?"""
        before, after = (getattr(self.user, HOOKS[0], None), getattr(self.user, HOOKS[1], None))
        return bool(before or after) and not self._strict

    def note_step(self) -> None:
        """Updates were made elsewhere: schedulers warn when they believe that no step was taken."""
        self.user._opt_called = True  # type: ignore[attr-defined]

    def apply(self, gradients: Mapping[str, torch.Tensor], kind: UpdateKind) -> None:
        """One weight update."""
        self._run_hooks(HOOKS[0])
        executable, values = self.prepared(gradients, kind)
        results = executable.run(values)
        for output, result in zip(executable.program.outputs, results, strict=True):
            key, _, name = output.name.partition("/")
            self.bound.state[self._tensors[name]][key] = result.clone()
        self.note_step()
        self._run_hooks(HOOKS[1])

    def _run_hooks(self, which: str) -> None:
        """The user's step hooks, as around `optimizer.step()`; on a device there are none."""
        hooks = getattr(self.user, which, None)
        if hooks and not self._strict:
            for hook in list(hooks.values()):
                hook(self.user, (), {})

    def prepared(
        self, gradients: Mapping[str, torch.Tensor], kind: UpdateKind
    ) -> tuple[ReferenceExecutable, Sequence[Any]]:
        """The program of this update and its inputs."""
        specs = {name: TensorSpec.of(gradient) for name, gradient in gradients.items()}
        current = self.settle(kind, specs)
        return current.variant.executable, self._values(current.feed, gradients)

    def settle(self, kind: UpdateKind, gradients: Mapping[str, TensorSpec]) -> Current:
        """The update to run now, for gradients like these: the last one, a known one, or a new."""
        current = self._current
        if (
            current is None
            or current.variant.kind != kind
            or not current.layout.still_holds(self.bound)
            or not self._guards_hold(current.variant, current.feed)
        ):
            current = self._current = self._choose(gradients, kind)
        return current

    def _guards_hold(self, variant: UpdateVariant, feed: Feed) -> bool:
        return not variant.guards or variant.guards.hold(self._values(feed, _NO_GRADIENTS))

    def _values(self, feed: Feed, gradients: Mapping[str, torch.Tensor]) -> Sequence[Any]:
        return feed.values(self.bound, self._weights, gradients, self.scale_tensors())

    def _choose(self, gradients: Mapping[str, TensorSpec], kind: UpdateKind) -> Current:
        """Look for a known program of the present structure; trace one if there is none."""
        self._current = None
        self._check_parameters(self.bound)
        structure = structure_of(self.bound, self.names)
        for variant in self._variants:
            if variant.kind == kind and variant.update.structure == structure:
                feed = self._feed(variant)
                if self._guards_hold(variant, feed):
                    return self._kept(variant, feed)
        variant = self._capture(self.bound, gradients, kind)
        return self._kept(variant, self._feed(variant))

    def foresee(self, kind: UpdateKind, gradients: Mapping[str, TensorSpec]) -> UpdateVariant:
        """The update of later steps, told before the first one has made the optimizer's state."""
        current = self.settle(kind, gradients)
        if not current.variant.creates_state:
            return current.variant
        twin = copy.copy(self.bound)
        twin.__dict__["state"] = defaultdict(dict)
        for output in current.variant.executable.program.outputs:
            key, _, name = output.name.partition("/")
            assert isinstance(output.spec, TensorSpec)
            # Only single numbers are read: Python may branch on them.
            make = torch.zeros if math.prod(output.spec.shape) == 1 else torch.empty
            made = make(output.spec.shape, dtype=output.spec.dtype)
            twin.state[self._tensors[name]][key] = made
        variant = self._capture(twin, gradients, kind)
        self._variants.append(variant)
        return variant

    def _feed(self, variant: UpdateVariant) -> Feed:
        return Feed(variant.update, variant.executable.program, self.bound, self.names)

    def _kept(self, variant: UpdateVariant, feed: Feed) -> Current:
        """Make this the variant to try first; forget those not used for long, or never again.

        The first step of an optimizer is not made twice, unless its state is thrown away.
        """
        others = [v for v in self._variants if v is not variant and not v.creates_state]
        self._variants = [variant, *others][:_MOST_VARIANTS]
        return Current(variant, Layout(self.bound), feed)

    def _capture(
        self,
        optimizer: torch.optim.Optimizer,
        gradients: Mapping[str, TensorSpec],
        kind: UpdateKind,
    ) -> UpdateVariant:
        # Imported late for the same reason as in compile.py: tracing needs sympy.
        from pantile.capture.optimizer import capture_update

        known = {self.names[id(p)] for g in optimizer.param_groups for p in g["params"]}
        request = UpdateRequest(
            optimizer,
            self.names,
            {name: spec for name, spec in gradients.items() if name in known},
            kind.divisor,
            kind.scaled,
            {name: self._weights.whole(name) for name in known},
            library_step=self._strict,
        )
        update = capture_update(request)
        self.captures += 1
        executable = self._numerics.lowered(self._adapting(run_passes(update.program), kind))
        return UpdateVariant(kind, update, executable, UpdateGuards(executable.program))

    def _adapting(self, program: Program, kind: UpdateKind) -> Program:
        """The update that also adapts the scale of the loss."""
        if self.scale is None:
            return program
        known = {e.name for e in program.inputs_of(InputKind.GRADIENT)}
        watched = [name for name in kind.watched if name in known]
        return automatic_loss_scaling(program, self.scale.rule, watched, summed=kind.summed)


def _detached(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """A copy with its own hyper-parameters and no state, over the same parameters."""
    twin = copy.copy(optimizer)
    twin.__dict__["param_groups"] = [
        {k: (list(v) if k == "params" else _copied(v)) for k, v in group.items()}
        for group in optimizer.param_groups
    ]
    twin.__dict__["state"] = defaultdict(dict)
    if isinstance(twin, AdamW):
        # PopTorch accepts bias_correction=False and corrects all the same.
        twin.bias_correction = True
    return twin


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)
