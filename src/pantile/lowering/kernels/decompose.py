"""A program in simpler operators, node by node.

    %n = layer_norm(%x, …)        ->        %m = mean(%x);  %d = sub(%x, %m);  …
    %y = mul(%n, %w)                        %y = mul(…, %w)

An operator without a rule is copied as it is, with the shapes that are known of it. An operator
with one is run once on stand-ins, what it calls is written down, and every node that calls it in
the same way gets a copy: a model is made of few different calls. To trace all of W3 anew took
2.4 s, this takes a tenth.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from pantile.errors import Error
from pantile.lowering.kernels.outside import is_effect, write_outside
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.retrace import no_code, retraced
from pantile.program.calls import likeness
from pantile.program.nodes import copied_node, new_call
from pantile.program.program import WRITE, Program
from pantile.program.tracing import TRACER_LOCK

Table = Mapping[Any, Callable[..., Any]]


class _Unusual(Exception):
    """Something that only a trace of the whole program gets right."""


@dataclass(frozen=True)
class _Value:
    """The result number `number` of a recording; the stand-ins given to it come first."""

    number: int


@dataclass
class _Recording:
    """What an operator is made of."""

    calls: list[tuple[Any, Any, Any, Any]] = field(default_factory=list)
    """Targets, arguments, named ones, and what they return."""
    results: Any = None


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the calls of operators that have no rule."""

    def __init__(self, table: Table) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._table = table
        self.recording = _Recording()
        self._numbers: dict[int, int] = {}
        self._alive: list[torch.Tensor] = []  # else another tensor gets the same address

    def know(self, tensor: torch.Tensor) -> None:
        """One more result."""
        self._numbers[id(tensor)] = len(self._alive)
        self._alive.append(tensor)

    def reference(self, value: Any) -> Any:
        """How a recording names a value."""
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in self._numbers:
            raise _Unusual("a tensor from elsewhere")
        return _Value(self._numbers[id(value)])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A call of an operator, by a rule or by the operator itself."""
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload) or func.namespace == "prim":
            return func(*args, **kwargs)
        with self:
            found = _expanded(self._table, func, args, kwargs)
        if found is not NotImplemented:
            return found
        if func._schema.is_mutable:
            raise _Unusual(f"{func} writes")
        out = func(*args, **kwargs)
        self._note(func, args, kwargs, out)
        return out

    def _note(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        given, named = pytree.tree_map(self.reference, (args, kwargs))
        self.recording.calls.append((func, given, named, out))
        if isinstance(out, torch.Tensor):
            self.know(out)
        elif isinstance(out, tuple | list):
            whole = len(self._alive)
            self._alive.append(torch.empty(0, device="meta"))  # the place of all of them
            for place, one in enumerate(out):
                if isinstance(one, torch.Tensor):
                    given = (_Value(whole), place)
                    self.recording.calls.append((operator.getitem, given, {}, one))
                    self.know(one)


def _expanded(table: Table, func: OpOverload, args: Any, kwargs: Any) -> Any:
    """What the rule of an operator returns; NotImplemented if there is none for this case."""
    rule = table.get(func)
    found = NotImplemented if rule is None else rule(*args, **kwargs)
    return func.decompose(*args, **kwargs) if found is NotImplemented else found


def decomposed(program: Program, table: Table, left: Collection[fx.Node] = ()) -> fx.Graph:
    """The graph of a program after decomposition, but for nodes that are left to torch.

    Every node of it knows the node of the program that it was made for: `meta["origin"]`.
    """
    try:
        if program.subgraphs:
            raise _Unusual("subgraphs")
        with TRACER_LOCK, torch.no_grad():
            return _Decomposition(table, left).of(program.graph)
    except _Unusual as error:
        if left:
            raise Refused(str(error)) from error
        return retraced(program, table)[0].graph


class _Decomposition:
    """The graph that is written."""

    def __init__(self, table: Table, left: Collection[fx.Node]) -> None:
        self._table, self._left = table, left
        self._graph = fx.Graph()
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._known: dict[Any, _Recording | None] = {}
        self._became: dict[fx.Node, Any] = {}

    def of(self, graph: fx.Graph) -> fx.Graph:
        """All nodes of a graph."""
        for node in graph.nodes:
            self._became[node] = self._written(node)
        for node in reversed(list(self._graph.nodes)):
            unused = node.op == "call_function" and not node.users
            if unused and node.target is not WRITE and not is_effect(node):
                self._graph.erase_node(node)
        return self._graph

    def _written(self, node: fx.Node) -> Any:
        if node.op in ("placeholder", "output"):
            return self._copied(node)
        if node.op != "call_function":
            raise _Unusual(node.op)
        if node in self._left:
            return write_outside(self._graph, node, self._became)
        if node.target is operator.getitem:
            args: Any = node.args
            whole = self._became[args[0]]
            return whole[args[1]] if isinstance(whole, tuple | list) else self._copied(node)
        if not isinstance(node.target, OpOverload):
            raise _Unusual(str(node.target))
        if node.target not in self._table and not node.target._can_decompose():
            return self._copied(node)
        recording = self._recording(node)
        return self._copied(node) if recording is None else self._replayed(node, recording)

    def _copied(self, node: fx.Node) -> fx.Node:
        copy = copied_node(self._graph, node, self._became.__getitem__)
        copy.meta["origin"] = node
        return copy

    def _recording(self, node: fx.Node) -> _Recording | None:
        """What a node is made of; None if that is only itself."""
        given = fx.map_arg((node.args, node.kwargs), self._became.__getitem__)
        key = (node.target, likeness(given))
        if key not in self._known or key[1] is None:
            try:
                self._known[key] = self._recorded(node)
            except (Error, _Unusual):
                raise
            except Exception as error:
                why = no_code(str(node.target), error)
                raise Refused(str(error).partition("\n")[0], {node: str(why)}) from why
        return self._known[key]

    def _recorded(self, node: fx.Node) -> _Recording | None:
        recorder = _Recorder(self._table)
        target = node.target
        assert isinstance(target, OpOverload)
        with self._mode:
            # Of what operands became: our LSTM hands its gradient other things than torch's does.
            stand_ins = {given: _stand_in(self._became[given]) for given in node.all_input_nodes}
            for stand_in in stand_ins.values():
                recorder.know(stand_in)
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda given: stand_ins[given])
            with recorder:
                results = _expanded(self._table, target, args, kwargs)
        if results is NotImplemented:
            return None
        recording = recorder.recording
        recording.results = pytree.tree_map(recorder.reference, results)
        return recording

    def _replayed(self, node: fx.Node, recording: _Recording) -> Any:
        values: list[Any] = [self._became[given] for given in node.all_input_nodes]

        def value(named: Any) -> Any:
            return values[named.number] if isinstance(named, _Value) else named

        first = len(values)
        for target, args, kwargs, out in recording.calls:
            args, kwargs = pytree.tree_map(value, (args, kwargs))
            made = new_call(self._graph, target, args, kwargs)
            made.meta.update(val=out, origin=node)
            values.append(made)
        results = pytree.tree_map(value, recording.results)
        new = set(values[first:])
        _keep_strides(results, node.meta.get("val"), new)
        return results


def _keep_strides(result: Any, known: Any, new: set[Any]) -> None:
    """Results lie as the operator's own would: who reads their memory counts on it."""
    if isinstance(result, fx.Node) and isinstance(known, torch.Tensor):
        own = result.meta["val"]
        if result in new and own.shape == known.shape and own.dtype is known.dtype:
            result.meta["val"] = known
    elif isinstance(result, tuple | list) and isinstance(known, tuple | list):
        for one, value in zip(result, known, strict=False):
            _keep_strides(one, value, new)


def _tensor_of(value: Any) -> torch.Tensor:
    known = value.meta["val"] if isinstance(value, fx.Node) else None
    if not isinstance(known, torch.Tensor):
        raise _Unusual("an operand that is no tensor")
    return known


def _stand_in(node: Any) -> torch.Tensor:
    value = _tensor_of(node)
    return torch.empty_strided(tuple(value.shape), tuple(value.stride()), dtype=value.dtype)
