"""Optimizers inside a recorded step: backward, clipping and `optimizer.step()` in one program.

    opt.zero_grad(); loss.backward(); opt.step()      as the user wrote it, on fake tensors

    parameters         state of the module; the optimizers' groups hold their fakes meanwhile
    optimizer state    further state of the program, written in place
    numbers            learning rates and the like: one input, read from the groups at each run
    .grad              what is there at the beginning is an input, what is there at the end a result

`optimizer.step()` becomes the update program that the core records of it, put into the graph. The
very first step of an optimizer makes its state; it runs eagerly (`FirstStep` is raised).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import fx, nn

from pantile.capture.hyper import Hyper, UpdateProgram, UpdateRequest, state_name
from pantile.capture.tracked import Facts
from pantile.errors import ForeignParameter
from pantile.passes.numbers_as_tensors import numbers_as_tensors
from pantile.passes.pipeline import run_passes
from pantile.program.program import Program
from pantile.program.spec import Input, InputKind, TensorSpec
from pantile.runtime.update_guards import UpdateGuards
from pantile.runtime.update_values import Layout


class FirstStep(Exception):
    """An optimizer has no state yet."""


class OptimizersInStep:
    """The optimizers of a step as inputs and state of its program."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], module: nn.Module) -> None:
        self._optimizers = list(optimizers)
        self._module = module
        self._real = dict(module.named_parameters())
        self._names = {id(p): name for name, p in self._real.items()}
        for optimizer in self._optimizers:
            self._check(optimizer)
        self._layouts = [Layout(optimizer) for optimizer in self._optimizers]
        self._groups = [list(map(dict, o.param_groups)) for o in self._optimizers]
        self._hypers = [(i, h) for i, o in enumerate(self._optimizers) for h in _numbers(o)]
        self._places = {(i, h.name): place for place, (i, h) in enumerate(self._hypers)}
        self._with_gradient = [n for n, p in self._real.items() if p.grad is not None]
        self._state_now: dict[tuple[int, str], torch.Tensor] = {}

    def _check(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in self._names:
                    raise ForeignParameter(
                        f"{type(optimizer).__name__} has a parameter of shape "
                        f"{list(parameter.shape)} that does not belong to the model",
                        fix="build the optimizer from the parameters of the model",
                    )

    # For a run

    def still_holds(self) -> bool:
        """Do the optimizers consist of the same objects, but for numbers and gradients?"""
        pairs = zip(self._layouts, self._optimizers, strict=True)
        return all(layout.still_holds(optimizer) for layout, optimizer in pairs)

    def surroundings(self) -> tuple[Any, ...]:
        """What a program depends on, besides what `recording` concludes."""
        return (tuple(map(id, self._optimizers)), tuple(self._with_gradient))

    def inputs(self) -> list[torch.Tensor]:
        """The numbers, then the gradients that are there."""
        row = [float(hyper.read(self._optimizers[i])) for i, hyper in self._hypers]
        numbers = torch.tensor([[*row, 0.0]], dtype=torch.float64)  # never empty
        return [numbers, *(self._gradient(name) for name in self._with_gradient)]

    def _gradient(self, name: str) -> torch.Tensor:
        gradient = self._real[name].grad
        assert gradient is not None
        return gradient

    def state(self) -> dict[str, torch.Tensor]:
        """The optimizers' state, under names that a module takes."""
        return {
            f"optimizer_{i}_{self._names[id(p)]}_{key}".replace(".", "_"): value
            for i, optimizer in enumerate(self._optimizers)
            for p, entries in optimizer.state.items()
            for key, value in entries.items()
            if isinstance(value, torch.Tensor)
        }

    # While recording

    @contextmanager
    def recording(
        self, extras: Sequence[torch.Tensor], state: Mapping[str, Any], facts: Facts
    ) -> Iterator[None]:
        """Steps of the optimizers inside are recorded."""
        fakes = dict(self._module.named_parameters())
        numbers, gradients = extras[0], extras[1:]
        for name, gradient in zip(self._with_gradient, gradients, strict=True):
            fakes[name].grad = gradient.clone()
        self._state_now = by_key = dict(zip(self._keys(), state.values(), strict=True))
        with ExitStack() as undo:
            for i, optimizer in enumerate(self._optimizers):
                facts.conclude(_still_holds(self._layouts[i], optimizer), True)
                for group, real in zip(optimizer.param_groups, self._groups[i], strict=True):
                    undo.callback(group.__setitem__, "params", real["params"])
                    group["params"] = [fakes[self._names[id(p)]] for p in real["params"]]
                step = _Step(self, i, fakes, numbers, by_key, facts)
                before = vars(optimizer).get("step")
                optimizer.__dict__["step"] = step
                undo.callback(_put_back, optimizer, before)
            yield

    def _keys(self) -> list[tuple[int, str]]:
        return [
            (i, state_name(key, self._names[id(p)]))
            for i, optimizer in enumerate(self._optimizers)
            for p, entries in optimizer.state.items()
            for key, value in entries.items()
            if isinstance(value, torch.Tensor)
        ]

    def changed_by(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """While recording: the parameters and the state that a step of this optimizer changes."""
        mine = next(i for i, known in enumerate(self._optimizers) if known is optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        return [*parameters, *(v for (i, _), v in self._state_now.items() if i == mine)]

    def left_gradients(self) -> tuple[list[torch.Tensor], list[str]]:
        """The gradients that are there at the end of the recorded step, and whose they are."""
        left = [(n, p.grad) for n, p in self._module.named_parameters() if p.grad is not None]
        for _, parameter in self._module.named_parameters():
            parameter.grad = None
        return [gradient for _, gradient in left], [name for name, _ in left]

    def give_gradients(self, names: Sequence[str], gradients: Sequence[torch.Tensor]) -> None:
        """After a run: what the step left is in `.grad`, and nothing else."""
        given = dict(zip(names, gradients, strict=True))
        for name, parameter in self._real.items():
            parameter.grad = given.get(name)

    # The update of one optimizer

    def captured(
        self, index: int, gradients: Mapping[str, TensorSpec], kwargs: Mapping[str, Any]
    ) -> UpdateProgram:
        """The update of an optimizer, recorded of its own step() with these arguments."""
        from pantile.capture.optimizer import capture_update

        twin = copy.copy(self._optimizers[index])
        twin.__dict__["param_groups"] = self._groups[index]
        twin.__dict__.pop("step", None)
        update = capture_update(UpdateRequest(twin, self._names, gradients, arguments=kwargs))
        if update.program.outputs:
            raise FirstStep
        return update

    def guards(self, index: int, update: UpdateProgram) -> Callable[[Any], bool] | None:
        """Whether an optimizer's Python would take the same branches again."""
        program = run_passes(update.program)
        guards = UpdateGuards(program)
        if not guards:
            return None
        optimizer, hypers = self._optimizers[index], {h.name: h for h in update.hypers}
        owners = {name: p for p, name in ((p, self._names[id(p)]) for p in self._real.values())}

        def value(entry: Input) -> Any:
            if entry.kind is InputKind.HYPER:
                return hypers[entry.name].read(optimizer)
            if entry.kind is InputKind.OPTIMIZER:
                key, _, name = entry.name.partition("/")
                return optimizer.state[owners[name]][key]
            return torch.empty(0)

        return lambda _: guards.hold([value(entry) for entry in program.inputs])

    def place(self, index: int, name: str) -> int | None:
        """Where a number of an optimizer is in the input for numbers."""
        return self._places.get((index, name))


class _Step:
    """Stands for `optimizer.step` while recording."""

    def __init__(
        self,
        owner: OptimizersInStep,
        index: int,
        fakes: Mapping[str, torch.Tensor],
        numbers: torch.Tensor,
        state: Mapping[tuple[int, str], torch.Tensor],
        facts: Facts,
    ) -> None:
        self._owner, self._index = owner, index
        self._fakes, self._numbers, self._state, self._facts = fakes, numbers, state, facts

    def __call__(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        optimizer = self._owner._optimizers[self._index]
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        gradients = {
            name: fake.grad
            for name, fake in self._fakes.items()
            if id(fake) in mine and fake.grad is not None
        }
        if gradients:
            self._update(gradients, kwargs)
        return result

    def _update(self, gradients: Mapping[str, torch.Tensor], kwargs: Mapping[str, Any]) -> None:
        from torch.utils._python_dispatch import _disable_current_modes

        specs = {name: TensorSpec.of(gradient) for name, gradient in gradients.items()}
        with _disable_current_modes(), torch.no_grad(), torch.autocast("cpu", enabled=False):
            update = self._owner.captured(self._index, specs, kwargs)
            holds = self._owner.guards(self._index, update)
            program = numbers_as_tensors(run_passes(update.program))
        if holds is not None:
            self._facts.conclude(holds, True)
        with torch.no_grad():
            _inline(program, [self._value(entry, gradients) for entry in program.inputs])

    def _value(self, entry: Input, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        match entry.kind:
            case InputKind.PARAMETER:
                return self._fakes[entry.name]
            case InputKind.GRADIENT:
                return gradients[entry.name]
            case InputKind.OPTIMIZER:
                return self._state[self._index, entry.name]
        place = self._owner.place(self._index, entry.name)
        assert place is not None and isinstance(entry.spec, TensorSpec), entry
        return self._numbers[0, place].to(entry.spec.dtype).reshape(entry.spec.shape)


def _inline(program: Program, inputs: Sequence[Any]) -> None:
    """Run a program's graph, so that it becomes part of the graph that is being recorded."""
    values: dict[fx.Node, Any] = dict(zip(program.placeholders, inputs, strict=True))
    for node in program.graph.nodes:
        if node.op == "get_attr":
            values[node] = program.constants[str(node.target)]
        elif node.op == "call_function":
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)


def _numbers(optimizer: torch.optim.Optimizer) -> Iterator[Hyper]:
    """Every float of an optimizer's groups, under the name its update program uses."""
    for index, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key == "params":
                continue
            if isinstance(value, float) or _is_number(value):
                yield Hyper(f"{key}[{index}]", index, key, None)
            elif isinstance(value, (tuple, list)):
                for item, part in enumerate(value):
                    if isinstance(part, float):
                        yield Hyper(f"{key}.{item}[{index}]", index, key, item)


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.is_floating_point()


def _still_holds(layout: Layout, optimizer: torch.optim.Optimizer) -> Callable[[Any], bool]:
    return lambda _: layout.still_holds(optimizer)


def _put_back(optimizer: torch.optim.Optimizer, step: Any) -> None:
    if step is None:
        optimizer.__dict__.pop("step", None)
    else:
        optimizer.__dict__["step"] = step
