"""Record one optimizer update as a Program, from the optimizer's own `step()`.

    optimizer.step()  on stand-ins for parameters, gradients, state and numbers
        ──tape──►  Program `update`:
            parameters, gradients, optimizer state (tensors), hyper-parameters (numbers)
            body in the order of step(), epilogue `copy_` onto parameters and state

State that does not exist yet (the first step creates it) is returned as new state; later steps
have another state layout and so another program. Branches on hyper-parameters become guards.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx

from pantile.capture.hyper import Hyper, UpdateProgram, UpdateRequest, state_name, structure_of
from pantile.capture.rewrite import as_program
from pantile.capture.scalar import Scalar
from pantile.capture.tape import UpdateTape
from pantile.errors import Error, OptimizerError, combined
from pantile.optim import Optimizer
from pantile.optim.supported import check_static, library_class
from pantile.program.program import Program
from pantile.program.spec import (
    Guard,
    Input,
    InputKind,
    NodeTag,
    Output,
    OutputKind,
    ScalarSpec,
    TensorSpec,
)
from pantile.program.tracing import TRACER_LOCK


def capture_update(request: UpdateRequest) -> UpdateProgram:
    """Record `optimizer.step()` for the optimizer as it is now."""
    check_static(request.optimizer)
    with TRACER_LOCK:
        return _UpdateTrace(request).run()


class _UpdateTrace:
    """Runs step() on stand-ins under a tape."""

    def __init__(self, request: UpdateRequest) -> None:
        self.request = request
        self.tape = UpdateTape()
        self.outputs: list[Output] = []
        self.returned: list[fx.Node] = []
        self.hypers: list[Hyper] = []
        self._numbers: dict[str, Scalar] = {}

    def run(self) -> UpdateProgram:
        """Record, and wrap what was recorded."""
        request = self.request
        structure = structure_of(request.optimizer, request.names)
        tensors = self._tensor_inputs()
        self._number_inputs()
        try:
            with self.tape.recording():
                torch.func.functionalize(self._step, remove="mutations")(tensors)
        except Error:
            raise
        except (RuntimeError, TypeError, ValueError, AttributeError, AssertionError) as error:
            raise combined(OptimizerError, type(error))(
                f"step() of {type(request.optimizer).__name__} cannot be recorded: {error}",
                fix="use an optimizer of torch.optim or poptorch.optim, with values it accepts",
            ) from error
        return UpdateProgram(self._program(), tuple(self.hypers), structure)

    def _program(self) -> Program:
        graph = self.tape.graph
        graph.output(tuple(self.returned))
        # Not a real GraphModule: it would write Python code that nobody runs (0.1 s for Adam).
        module: Any = SimpleNamespace(graph=graph, **self.tape.constants)
        program = as_program(
            module, name="update", inputs=self.tape.inputs, outputs=self.outputs, tags={}
        )
        tag = NodeTag(phase="update")
        for node in program.graph.nodes:
            if node.op == "call_function":
                node.meta["tag"] = tag
        return program.replace(guards=self._live_guards(program))

    def _live_guards(self, program: Program) -> tuple[Guard, ...]:
        names = {node.name for node in program.graph.nodes}
        return tuple(g for name, g in self.tape.scalars.guards.items() if name in names)

    # Inputs

    def _tensor_input(self, name: str, kind: InputKind, tensor: torch.Tensor) -> torch.Tensor:
        """Big tensors are fake; single numbers are real copies, so that a branch has an answer."""
        entry = Input(name, kind, TensorSpec.of(tensor))
        if tensor.numel() == 1 and kind in (InputKind.OPTIMIZER, InputKind.HYPER):
            return self.tape.input(entry, tensor.detach().clone())
        return self.tape.input(entry, self.tape.stand_in(tensor, name))

    def _tensor_inputs(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        optimizer, request = self.request.optimizer, self.request
        for p in _parameters(optimizer):
            name = request.names[id(p)]
            tensor = request.parameters.get(name, p).detach()
            found[f"p/{name}"] = self._tensor_input(name, InputKind.PARAMETER, tensor)
        for name, spec in request.gradients.items():
            fake = self.tape.empty(spec)
            found[f"g/{name}"] = self.tape.input(Input(name, InputKind.GRADIENT, spec), fake)
        for p in _parameters(optimizer):
            for key, value in optimizer.state.get(p, {}).items():
                if isinstance(value, torch.Tensor):
                    name = state_name(key, request.names[id(p)])
                    found[name] = self._tensor_input(name, InputKind.OPTIMIZER, value)
        for index, group in enumerate(optimizer.param_groups):
            for key, value in group.items():
                if isinstance(value, torch.Tensor):
                    name = f"{key}[{index}]"
                    self.hypers.append(Hyper(name, index, key, None))
                    found[name] = self._tensor_input(name, InputKind.HYPER, value)
        if request.loss_scaling:
            found["loss_scaling"] = self._tensor_input(
                "loss_scaling", InputKind.HYPER, torch.ones(())
            )
        return found

    def _number_inputs(self) -> None:
        for index, group in enumerate(self.request.optimizer.param_groups):
            for key, value in group.items():
                if key == "params":
                    continue
                if isinstance(value, float):
                    self._number_input(Hyper(f"{key}[{index}]", index, key, None), value)
                elif isinstance(value, (tuple, list)):
                    for item, part in enumerate(value):
                        if isinstance(part, float):
                            hyper = Hyper(f"{key}.{item}[{index}]", index, key, item)
                            self._number_input(hyper, part)

    def _number_input(self, hyper: Hyper, value: float) -> None:
        entry = Input(hyper.name, InputKind.HYPER, ScalarSpec())
        self.hypers.append(hyper)
        self._numbers[hyper.name] = self.tape.number(entry, value)

    # The function that is recorded

    def _step(self, tensors: dict[str, torch.Tensor]) -> None:
        shadow, stand_ins = self._shadow(tensors)
        before = {
            (name, key): value
            for name, p in stand_ins.items()
            for key, value in shadow.state[p].items()
        }
        optimizer = self.request.optimizer
        kind = library_class(optimizer) if self.request.library_step else type(optimizer)
        kind.step(shadow, **self.request.arguments)
        for name, p in stand_ins.items():
            for key, value in shadow.state[p].items():
                if value is not before.get((name, key)):
                    self._new_state(state_name(key, name), value)

    def _shadow(
        self, tensors: dict[str, torch.Tensor]
    ) -> tuple[torch.optim.Optimizer, dict[str, torch.Tensor]]:
        """A copy of the optimizer over the stand-ins."""
        real, names = self.request.optimizer, self.request.names
        shadow = copy.copy(real)
        stand_ins = {names[id(p)]: tensors[f"p/{names[id(p)]}"] for p in _parameters(real)}
        groups = []
        for index, group in enumerate(real.param_groups):
            new = {key: self._recorded(index, key, value, tensors) for key, value in group.items()}
            if new.get("capturable"):
                # Only says that a GPU may record the update; torch refuses it on a CPU.
                new["capturable"] = False
            new["params"] = [stand_ins[names[id(p)]] for p in group["params"]]
            groups.append(new)
        state: dict[Any, Any] = defaultdict(dict)
        for p in _parameters(real):
            name = names[id(p)]
            entries = real.state.get(p, {})
            if entries:
                state[stand_ins[name]] = {
                    key: tensors.get(state_name(key, name), value) for key, value in entries.items()
                }
        # torch's __setstate__ and property hooks must not run: plain attributes only.
        shadow.__dict__["param_groups"] = groups
        shadow.__dict__["state"] = state
        shadow.__dict__["_optimizer_step_pre_hooks"] = {}
        shadow.__dict__["_optimizer_step_post_hooks"] = {}
        for name, p in stand_ins.items():
            gradient = tensors.get(f"g/{name}")
            if gradient is not None:
                _give_gradient(shadow, p, self._scaled(gradient, p, tensors))
        return shadow, stand_ins

    def _scaled(
        self, gradient: torch.Tensor, p: torch.Tensor, tensors: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """The gradient the optimizer sees: the mean of what was accumulated, unscaled."""
        if gradient.dtype is not p.dtype:
            gradient = gradient.to(torch.promote_types(gradient.dtype, p.dtype))
        if self.request.divisor != 1:
            gradient = gradient / self.request.divisor
        if self.request.loss_scaling:
            gradient = gradient / tensors["loss_scaling"].to(gradient.dtype)
        return gradient

    def _recorded(self, index: int, key: str, value: Any, tensors: dict[str, torch.Tensor]) -> Any:
        if key == "params":
            return value
        if isinstance(value, torch.Tensor):
            return tensors[f"{key}[{index}]"]
        if isinstance(value, (tuple, list)):
            parts = (self._numbers.get(f"{key}.{i}[{index}]", v) for i, v in enumerate(value))
            return type(value)(parts)
        return self._numbers.get(f"{key}[{index}]", value)

    def _new_state(self, name: str, value: Any) -> None:
        if not isinstance(value, torch.Tensor):
            raise OptimizerError(
                f"state {name!r} is a Python {type(value).__name__} that step() changes",
                fix="keep it in a 0-d tensor, as torch.optim does",
            )
        torch._sync(value)  # type: ignore[no-untyped-call, attr-defined]
        self.returned.append(self.tape.node_of(torch._from_functional_tensor(value)))
        self.outputs.append(Output(name, OutputKind.OPTIMIZER, TensorSpec.of(value)))


def _give_gradient(optimizer: torch.optim.Optimizer, p: Any, gradient: torch.Tensor) -> None:
    """Set `p.grad`, rounded to the type of `p` unless the rule computes in a wider one.

    Rounding first would lose what loss scaling is for: an unscaled gradient below half's range.
    """
    if gradient.dtype is not p.dtype:
        if (
            isinstance(optimizer, Optimizer)
            and optimizer.mixes_types()
            and hasattr(p, "grad_dtype")
        ):
            p.grad_dtype = None
        else:
            gradient = gradient.to(p.dtype)
    p.grad = gradient


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
