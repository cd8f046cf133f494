"""Writes down what an optimizer's step() computes, one node an op.

step()  ──functionalise──►  UpdateTape  ──►  fx graph
                              big tensors     fake: shapes only
                              single numbers  real: Python may branch on them (see scalar.py)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pantile.capture.equal_calls import EqualCalls
from pantile.capture.scalar import Scalar, ScalarNode, ScalarTape, symbolic_max, symbolic_min
from pantile.errors import OptimizerError
from pantile.program.calls import tensors_in
from pantile.program.nodes import new_call
from pantile.program.spec import Input, TensorSpec

_ITEM = torch.ops.aten._local_scalar_dense.default
_EMPTY = torch.ops.aten.empty.memory_format
_DEVICE = torch.ops.prim.device.default
_TENSOR_OF_NUMBER = frozenset({torch.as_tensor, torch.tensor, torch.scalar_tensor})
_NOISE = frozenset({"profiler", "prim"})
_FUSED = {
    torch._fused_adam_: torch.ops.aten._fused_adam,
    torch._fused_adamw_: torch.ops.aten._fused_adamw,
    torch._fused_sgd_: torch.ops.aten._fused_sgd,
    torch._fused_adagrad_: torch.ops.aten._fused_adagrad,
}
_FUSED_OPS = frozenset(
    getattr(packet, overload) for packet in _FUSED.values() for overload in ("default", "tensor_lr")
)


class UpdateTape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every op below functionalisation."""

    supports_higher_order_operators = False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.graph = fx.Graph()
        self.scalars = ScalarTape(self.graph)
        self.constants: dict[str, torch.Tensor] = {}
        self.inputs: list[Input] = []
        self._nodes: dict[int, tuple[torch.Tensor, fx.Node]] = {}
        self._fused_numbers: Mapping[str, Any] = {}
        self._equal = EqualCalls(self.mode)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Ops inside are written down."""
        with _symbolic_math(), _Numbers(self), self, torch.no_grad():
            yield

    # Inputs

    def stand_in(self, tensor: torch.Tensor, what: str) -> torch.Tensor:
        """A fake tensor like a real one."""
        return self._equal.like(tensor, what)

    def empty(self, spec: TensorSpec) -> torch.Tensor:
        """A fake tensor with the default strides of its shape."""
        fake: torch.Tensor = self._equal.result(_EMPTY, (spec.shape,), {"dtype": spec.dtype})
        return fake

    def placeholder(self, entry: Input, value: Any) -> fx.Node:
        """A new input of the graph."""
        node = self.graph.placeholder(f"i{len(self.inputs)}")
        node.meta["val"] = value
        self.inputs.append(entry)
        return node

    def input(self, entry: Input, stand_in: torch.Tensor) -> torch.Tensor:
        """A tensor input; ops on `stand_in` are recorded as ops on it."""
        shape = stand_in
        if not isinstance(stand_in, FakeTensor):
            shape = self.stand_in(stand_in, entry.name)
        self._nodes[id(stand_in)] = (stand_in, self.placeholder(entry, shape))
        return stand_in

    def number(self, entry: Input, value: float) -> Scalar:
        """A number input."""
        return Scalar(ScalarNode(self.scalars, self.placeholder(entry, value), value))

    # Recording

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        if func.namespace in _NOISE:
            return func(*args, **kwargs)
        node_args, node_kwargs = _mapped(self._as_argument, (args, kwargs))
        if func is _ITEM:
            return self._item(args[0], node_args)
        plain_args, plain_kwargs = _mapped(_hint_of, (args, kwargs))
        if func in _FUSED_OPS:
            numbers = {k: self._as_argument(v) for k, v in self._fused_numbers.items()}
            result = self._fused(func, plain_args)
            self._track(func, node_args, {**node_kwargs, **numbers}, result)
            return result
        result = self._compute(func, plain_args, plain_kwargs)
        if func._schema.is_mutable:
            node = new_call(self.graph, func, node_args, node_kwargs)
            node.meta["val"] = self._fake_result(result)
            return args[0]
        self._track(func, node_args, node_kwargs, result)
        return result

    def _compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Numbers are computed for real, everything else on fake tensors."""
        if func._schema.is_mutable:
            return args[0]
        tensors = list(tensors_in((args, kwargs)))
        if any(isinstance(t, FakeTensor) for t in tensors):
            return self._equal.result(func, args, kwargs)
        if tensors:
            return func(*args, **kwargs)
        with self.mode:
            result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and result.numel() == 1:
            return func(*args, **kwargs)
        return result

    def _fused(self, func: Any, args: Any) -> tuple[list[torch.Tensor], ...]:
        """The shapes of a fused update, which torch has no rule for: those of what it updates."""
        with self.mode:
            return tuple(
                [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in args[i]]
                for i in range(len(func._schema.returns))
            )

    def fused_update(self, packet: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """One update by a fused kernel, in its form that returns the new values.

        Numbers go to C++ as doubles: plain values are passed there, and the symbols are recorded.
        """
        self._fused_numbers = {k: v for k, v in kwargs.items() if isinstance(v, torch.SymFloat)}
        try:
            results = packet(*args, **{k: _hint_of(v) for k, v in kwargs.items()})
        finally:
            self._fused_numbers = {}
        for tensors, values in zip(args, results, strict=False):
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)

    def _item(self, tensor: torch.Tensor, node_args: tuple[Any, ...]) -> torch.SymFloat:
        hint = None if isinstance(tensor, FakeTensor) else float(tensor.item())
        node = new_call(self.graph, _ITEM, node_args)
        node.meta["val"] = 0.0 if hint is None else hint
        return Scalar(ScalarNode(self.scalars, node, hint))

    def _track(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        node = new_call(self.graph, func, args, kwargs)
        node.meta["val"] = self._fake_result(result)
        self._bind(result, node)

    def _bind(self, result: Any, node: fx.Node) -> None:
        if isinstance(result, torch.Tensor):
            self._nodes[id(result)] = (result, node)
        elif isinstance(result, (tuple, list)):
            for i, part in enumerate(result):
                item = new_call(self.graph, operator.getitem, (node, i))
                item.meta["val"] = self._fake_result(part)
                self._bind(part, item)

    def _fake_result(self, result: Any) -> Any:
        if isinstance(result, (tuple, list)):
            return type(result)(self._fake_result(part) for part in result)
        if isinstance(result, torch.Tensor) and not isinstance(result, FakeTensor):
            return self.stand_in(result, "a number")
        return result

    def _as_argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if isinstance(value, torch.SymFloat):
            return value.node.value
        return value

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """The node that computes a tensor; a real tensor of unknown origin is a constant."""
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
        node.meta["val"] = self.stand_in(tensor, name)
        self._nodes[id(tensor)] = (tensor, node)
        return node


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Arguments with every leaf changed; torch's trees are ten times as slow."""
    if isinstance(value, tuple | list):
        return type(value)([_mapped(change, part) for part in value])
    if isinstance(value, dict):
        return {name: _mapped(change, part) for name, part in value.items()}
    return change(value)


def _hint_of(value: Any) -> Any:
    if isinstance(value, torch.SymFloat):
        hint = value.node.hint
        return 1.0 if hint is None else hint
    return value


class _Numbers(TorchFunctionMode):
    """Keeps numbers recorded where torch's C++ would take their value."""

    def __init__(self, tape: UpdateTape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in _TENSOR_OF_NUMBER and args and isinstance(args[0], torch.SymFloat):
            number: Any = args[0]
            return torch.full((), number, **kwargs)
        if func is torch.Tensor.square_:
            # A composite that functionalisation does not take apart; this is its definition.
            return args[0].pow_(2)
        if func is torch.Tensor.__setitem__ and _is_single_mask(args[1]):
            # Indexing by one truth value would ask for it; this does the same without.
            return args[0].masked_fill_(args[1], args[2])
        if func in _FUSED:
            return self._tape.fused_update(_FUSED[func], args, kwargs)
        result = func(*args, **kwargs)
        if type(result) is torch.SymFloat:
            return Scalar(result.node)
        return result


def _is_single_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype is torch.bool and index.dim() == 0


@contextmanager
def _symbolic_math() -> Iterator[None]:
    """Give torch's Adafactor and others a `max` and `min` that can be recorded.

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
