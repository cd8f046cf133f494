"""Record one optimizer update as a Program, from the optimizer's own `step()`.

    optimizer.step()  on fake parameters, gradients and state, with recorded numbers
        ──functionalise──►  Program `update`:
            parameters, gradients, optimizer state (tensors), hyper-parameters (numbers)
            body in the order of step(), epilogue `copy_` onto parameters and state

State that does not exist yet (the first step creates it) is returned as new state; later steps
have another state layout and so another program. Branches on hyper-parameters become guards.
"""

from __future__ import annotations

import copy
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pantile.capture.fake import fake_like
from pantile.capture.forward import CAPTURE_LOCK
from pantile.capture.rewrite import as_program
from pantile.capture.hyper import Hyper, UpdateProgram, UpdateRequest, state_name, structure_of
from pantile.capture.scalar import (
    Scalar,
    ScalarNode,
    ScalarTape,
    symbolic_max,
    symbolic_min,
)
from pantile.errors import Error, OptimizerError
from pantile.program.program import Program
from pantile.program.spec import (
    Input,
    InputKind,
    NodeTag,
    Output,
    OutputKind,
    ScalarSpec,
    TensorSpec,
)

_ITEM = torch.ops.aten._local_scalar_dense.default
_TENSOR_OF_NUMBER = frozenset({torch.as_tensor, torch.tensor, torch.scalar_tensor})
_NOISE = frozenset({"profiler", "prim"})


def capture_update(request: UpdateRequest) -> UpdateProgram:
    """Record `optimizer.step()` for the optimizer as it is now."""
    _check(request.optimizer)
    with CAPTURE_LOCK:
        return _UpdateTrace(request).run()


def _check(optimizer: torch.optim.Optimizer) -> None:
    if isinstance(optimizer, (torch.optim.LBFGS, torch.optim.SparseAdam)):
        raise OptimizerError(
            f"{type(optimizer).__name__} cannot be part of a static graph",
            fix="use one that needs no closure and no sparse gradients: SGD, Adam, AdamW, ...",
        )


class _UpdateTrace(TorchDispatchMode):
    """Records every op below functionalisation; keeps real values for single numbers."""

    supports_higher_order_operators = False

    def __init__(self, request: UpdateRequest) -> None:
        super().__init__()
        self.request = request
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.graph = fx.Graph()
        self.tape = ScalarTape(self.graph)
        self.constants: dict[str, torch.Tensor] = {}
        self.inputs: list[Input] = []
        self.outputs: list[Output] = []
        self.returned: list[fx.Node] = []
        self.hypers: list[Hyper] = []
        self._nodes: dict[int, tuple[torch.Tensor, fx.Node]] = {}
        self._numbers: dict[str, Scalar] = {}

    def run(self) -> UpdateProgram:
        request = self.request
        structure = structure_of(request.optimizer, request.names)
        tensors = self._tensor_inputs()
        self._number_inputs()
        try:
            with _symbolic_math(), _Items(), self, torch.no_grad():
                torch.func.functionalize(self._step, remove="mutations")(tensors)
        except Error:
            raise
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise OptimizerError(
                f"step() of {type(request.optimizer).__name__} cannot be recorded: {error}",
                fix="use an optimizer of torch.optim or poptorch.optim",
            ) from error
        self.graph.output(tuple(self.returned))
        module = fx.GraphModule(dict(self.constants), self.graph)
        program = as_program(
            module, name="update", inputs=self.inputs, outputs=self.outputs, tags={}
        )
        for node in program.graph.nodes:
            if node.op == "call_function":
                node.meta["tag"] = NodeTag(phase="update")
        program = program.replace(guards=self._live_guards(program))
        return UpdateProgram(program, tuple(self.hypers), structure)

    def _live_guards(self, program: Program) -> tuple[Any, ...]:
        names = {node.name for node in program.graph.nodes}
        return tuple(guard for name, guard in self.tape.guards.items() if name in names)

    # Inputs

    def _placeholder(self, entry: Input, value: Any) -> fx.Node:
        node = self.graph.placeholder(f"i{len(self.inputs)}")
        node.meta["val"] = value
        self.inputs.append(entry)
        return node

    def _tensor_input(self, name: str, kind: InputKind, tensor: torch.Tensor) -> torch.Tensor:
        """Big tensors are fake; single numbers are real copies, so that branches can be answered."""
        if tensor.numel() == 1 and kind is InputKind.OPTIMIZER:
            stand_in = tensor.detach().clone()
            shape = fake_like(self.mode, tensor, name)
        else:
            stand_in = shape = fake_like(self.mode, tensor, name)
        node = self._placeholder(Input(name, kind, TensorSpec.of(tensor)), shape)
        self._nodes[id(stand_in)] = (stand_in, node)
        return stand_in

    def _tensor_inputs(self) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        optimizer, request = self.request.optimizer, self.request
        for p in _parameters(optimizer):
            name = request.names[id(p)]
            found[f"p/{name}"] = self._tensor_input(name, InputKind.PARAMETER, p.detach())
        for name, spec in request.gradients.items():
            like = torch.empty(spec.shape, dtype=spec.dtype, device="meta")
            with self.mode:
                fake = torch.empty(like.shape, dtype=like.dtype)
            node = self._placeholder(Input(name, InputKind.GRADIENT, spec), fake)
            self._nodes[id(fake)] = (fake, node)
            found[f"g/{name}"] = fake
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
        node = self._placeholder(Input(hyper.name, InputKind.HYPER, ScalarSpec()), value)
        self.hypers.append(hyper)
        self._numbers[hyper.name] = Scalar(ScalarNode(self.tape, node, value))

    # The function that is recorded

    def _step(self, tensors: dict[str, torch.Tensor]) -> None:
        shadow, stand_ins = self._shadow(tensors)
        before = {
            (name, key): value
            for name, p in stand_ins.items()
            for key, value in shadow.state[p].items()
        }
        type(self.request.optimizer).step(shadow)
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
        for name, p in stand_ins.items():
            gradient = tensors.get(f"g/{name}")
            p.grad = None if gradient is None else self._scaled(gradient, p, tensors)
        groups = []
        for index, group in enumerate(real.param_groups):
            new = {key: self._recorded(index, key, value, tensors) for key, value in group.items()}
            if new.get("fused"):
                # The fused kernels have no shape rule; fusing is the engine's business anyway.
                new["fused"] = False
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
        return shadow, stand_ins

    def _scaled(
        self, gradient: torch.Tensor, p: torch.Tensor, tensors: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """The gradient the optimizer sees: the mean of what was accumulated, unscaled."""
        if gradient.dtype is not p.dtype:
            gradient = gradient.to(p.dtype)
        if self.request.divisor != 1:
            gradient = gradient / self.request.divisor
        if self.request.loss_scaling:
            gradient = gradient / tensors["loss_scaling"].to(gradient.dtype)
        return gradient

    def _recorded(
        self, index: int, key: str, value: Any, tensors: dict[str, torch.Tensor]
    ) -> Any:
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
        inner = torch._from_functional_tensor(_unwrapped(value))
        self.returned.append(self._node_of(inner))
        self.outputs.append(Output(name, OutputKind.OPTIMIZER, TensorSpec.of(value)))

    # Recording

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace in _NOISE:
            return func(*args, **kwargs)
        node_args, node_kwargs = pytree.tree_map(self._as_argument, (args, kwargs))
        if func is _ITEM:
            return self._item(args[0], node_args)
        plain_args, plain_kwargs = pytree.tree_map(_hint_of, (args, kwargs))
        result = self._compute(func, plain_args, plain_kwargs)
        if func._schema.is_mutable:
            node = self.graph.call_function(func, node_args, node_kwargs)
            node.meta["val"] = _fake_result(self.mode, result)
            return args[0]
        self._track(func, node_args, node_kwargs, result)
        return result

    def _compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Numbers are computed for real, everything else on fake tensors."""
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if func._schema.is_mutable:
            return args[0]
        if tensors and not any(isinstance(t, FakeTensor) for t in tensors):
            return func(*args, **kwargs)
        with self.mode:
            result = func(*args, **kwargs)
        if not tensors and isinstance(result, torch.Tensor) and result.numel() == 1:
            return func(*args, **kwargs)
        return result

    def _item(self, tensor: torch.Tensor, node_args: tuple[Any, ...]) -> torch.SymFloat:
        hint = None if isinstance(tensor, FakeTensor) else float(tensor.item())
        node = self.graph.call_function(_ITEM, node_args)
        node.meta["val"] = 0.0 if hint is None else hint
        return torch.SymFloat(ScalarNode(self.tape, node, hint))

    def _track(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        node = self.graph.call_function(func, args, kwargs)
        node.meta["val"] = _fake_result(self.mode, result)
        self._bind(result, node)

    def _bind(self, result: Any, node: fx.Node) -> None:
        if isinstance(result, torch.Tensor):
            self._nodes[id(result)] = (result, node)
        elif isinstance(result, (tuple, list)):
            for i, part in enumerate(result):
                item = self.graph.call_function(operator.getitem, (node, i))
                item.meta["val"] = _fake_result(self.mode, part)
                self._bind(part, item)

    def _as_argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._node_of(value)
        if isinstance(value, torch.SymFloat):
            return value.node.value
        return value

    def _node_of(self, tensor: torch.Tensor) -> fx.Node:
        known = self._nodes.get(id(tensor))
        if known is not None:
            return known[1]
        if isinstance(tensor, FakeTensor):
            raise OptimizerError(
                "step() uses a tensor that is neither a parameter, a gradient nor optimizer state",
                fix="keep it in optimizer.state[parameter]",
            )
        name = f"_constant{len(self.constants)}"
        self.constants[name] = tensor.detach().clone()
        node = self.graph.create_node("get_attr", name)
        node.meta["val"] = fake_like(self.mode, tensor, name)
        self._nodes[id(tensor)] = (tensor, node)
        return node


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _hint_of(value: Any) -> Any:
    if isinstance(value, torch.SymFloat):
        hint = value.node.hint
        return 1.0 if hint is None else hint
    return value


def _fake_result(mode: FakeTensorMode, result: Any) -> Any:
    if isinstance(result, (tuple, list)):
        return type(result)(_fake_result(mode, part) for part in result)
    if isinstance(result, torch.Tensor) and not isinstance(result, FakeTensor):
        return fake_like(mode, result, "a number")
    return result


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    torch._sync(tensor)
    return tensor


class _Items(TorchFunctionMode):
    """`.item()` gives a number with our rules for powers."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _TENSOR_OF_NUMBER and args and isinstance(args[0], torch.SymFloat):
            return torch.full((), args[0], **kwargs)
        if func is torch.Tensor.square_:
            # A composite that functionalisation does not take apart; this is its definition.
            return args[0].pow_(2)
        result = func(*args, **kwargs)
        if type(result) is torch.SymFloat:
            return Scalar(result.node)
        return result


@contextmanager
def _symbolic_math() -> Iterator[None]:
    """Give torch's Adafactor and others a `max`, `min` and `sqrt` that can be recorded.

    For plain numbers they do what the originals do, so another thread that runs an optimizer
    eagerly meanwhile gets the same results.
    """
    from torch.optim import _adafactor, asgd

    changed: list[tuple[Any, str]] = []
    for module in (_adafactor, asgd):
        for name, function in (("max", symbolic_max), ("min", symbolic_min)):
            module.__dict__[name] = function
            changed.append((module, name))
    try:
        yield
    finally:
        for module, name in changed:
            del module.__dict__[name]

