"""Write a recorded graph once more, without its in-place ops.

    %m = bernoulli_(%e, 0.9)              %m = bernoulli(%e, 0.9)
    %n = add_(%steps, 1)           ->     %n = add(%steps, 1)
    %y = mul(%x, %m)                      %y = mul(%x, %m)
    return %y                             copy_(%steps, %n)
                                          return %y

This is what functionalisation does, for the graphs in which it has little to do: no view is taken
of a tensor that is written, and the new value has the layout of the old one. It takes a tenth of
the time, because nothing is traced. For all other graphs the answer is None.
"""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode

from pantile.capture.layout import functional_form
from pantile.program.calls import tensors_in
from pantile.program.nodes import new_call
from pantile.program.program import WRITE

aten = torch.ops.aten

_BATCH_NORM = aten._native_batch_norm_legit.default
_NEW_FORM: dict[Any, OpOverload] = {
    aten.bernoulli_.float: aten.bernoulli.p,
    _BATCH_NORM: aten._native_batch_norm_legit_functional.default,
}


_SAME = frozenset({aten.detach.default, aten.alias.default, operator.getitem})
"""Ops whose result is their operand, or a part of it."""


def out_of_place(graph: fx.Graph, mode: FakeTensorMode) -> fx.Graph | None:
    """A functional graph with an epilogue of writes; None if only a new trace can tell it."""
    if not all(map(_is_plain, graph.nodes)):
        return None
    try:
        return _Copy(graph, mode).run()
    except _Involved:
        return None


class _Involved(Exception):
    """A write that functionalisation has to look at."""


class _Copy:
    """Copies node by node, and knows what every tensor holds by then."""

    def __init__(self, graph: fx.Graph, mode: FakeTensorMode) -> None:
        self._old, self._mode = graph, mode
        self._new = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}
        self._aliased = _aliased_memory(graph)
        self._written: dict[int, fx.Node] = {}
        """The new values, by the memory they would have been written to."""

    def run(self) -> fx.Graph:
        """The copy."""
        for node in self._old.nodes:
            if node.op == "placeholder":
                self._copies[node] = _marked(self._new.placeholder(str(node.target)), node)
            elif node.op == "output":
                self._write_inputs()
                self._new.output(fx.map_arg(node.args[0], self._now))
            elif _is_mutable(node.target):
                self._write(node)
            elif node not in self._copies:
                self._copies[node] = self._called(node, node.target)
        return self._new

    def _now(self, node: fx.Node) -> fx.Node:
        """What a node of the old graph holds now."""
        value = node.meta.get("val")
        if self._written and isinstance(value, torch.Tensor):
            return self._written.get(_memory(value), self._copies[node])
        return self._copies[node]

    def _called(self, node: fx.Node, target: Any) -> fx.Node:
        """A call of `target` with the arguments of a node."""
        args, kwargs = fx.map_arg((node.args, node.kwargs), self._now)
        if isinstance(target, OpOverload):
            args, kwargs = _without_defaults(target, args, kwargs)
        return _marked(self._create(target, args, kwargs), node)

    def _create(self, target: Any, args: tuple[Any, ...], kwargs: Any = None) -> fx.Node:
        named = target.overloadpacket if isinstance(target, OpOverload) else target
        name = self._new._target_to_str(named.__name__)
        return new_call(self._new, target, args, kwargs, name=name)

    def _write(self, node: fx.Node) -> None:
        """The functional form of an in-place op; what it returns is what the tensor holds now."""
        target = _NEW_FORM.get(node.target) or _pointwise_form(node.target)
        if target is None or len(node.args) < _required(target):
            raise _Involved
        made = self._called(node, target)
        with self._mode, torch.no_grad():
            args, kwargs = fx.map_arg((made.args, made.kwargs), lambda one: one.meta["val"])
            made.meta["val"] = target(*args, **kwargs)
        if node.target is _BATCH_NORM:
            parts = self._parts(made, node)
            for user in node.users:
                place: Any = user.args[1]
                self._copies[user] = parts[place]
            self._replace(node.args[3], parts[3])
            self._replace(node.args[4], parts[4])
        else:
            self._copies[node] = made
            self._replace(node.args[0], made)

    def _parts(self, made: fx.Node, node: fx.Node) -> list[fx.Node]:
        parts = []
        for place, value in enumerate(made.meta["val"]):
            part = _marked(self._create(operator.getitem, (made, place)), node)
            part.meta["val"] = value
            parts.append(part)
        return parts

    def _replace(self, written: Any, made: fx.Node) -> None:
        """From now on a tensor is what a node of the new graph holds."""
        before, after = written.meta["val"], made.meta["val"]
        if _memory(before) in self._aliased or _layout(before) != _layout(after):
            raise _Involved
        self._written[_memory(before)] = made

    def _write_inputs(self) -> None:
        for node in self._old.find_nodes(op="placeholder"):
            made = self._written.get(_memory(node.meta["val"]))
            if made is not None:
                write = self._create(WRITE, (self._copies[node], made))
                write.meta["val"] = node.meta["val"]


def _marked(made: fx.Node, node: fx.Node) -> fx.Node:
    """A new node, with what is known of the old one that it stands for."""
    made.meta = {"val": node.meta.get("val"), "from_node": [node]}
    return made


def _is_plain(node: fx.Node) -> bool:
    """Is it no constant, no nested graph, and is its shape known?"""
    if node.op == "placeholder":
        return isinstance(node.meta.get("val"), torch.Tensor)
    if node.op == "output" or node.target is operator.getitem:
        return True
    return isinstance(node.target, OpOverload) and node.meta.get("val") is not None


def _aliased_memory(graph: fx.Graph) -> set[int]:
    """Memory that is seen in more than one way: through a view, or as the result of two ops."""
    makers: Counter[int] = Counter()
    aliased: set[int] = set()
    for node in graph.nodes:
        if node.op == "output" or node.target in _SAME or _is_mutable(node.target):
            continue
        memory = {_memory(value) for value in tensors_in(node.meta["val"])}
        makers.update(memory)
        if _is_view(node.target):
            read = (_memory(t) for one in node.all_input_nodes for t in tensors_in(one.meta["val"]))
            aliased |= memory.union(read)
    return aliased | {memory for memory, count in makers.items() if count > 1}


def _is_mutable(target: Any) -> bool:
    return isinstance(target, OpOverload) and target._schema.is_mutable


def _is_view(target: Any) -> bool:
    return isinstance(target, OpOverload) and any(
        one.alias_info is not None for one in target._schema.returns
    )


def _pointwise_form(target: Any) -> OpOverload | None:
    form = functional_form(target)
    if form is None or torch.Tag.pointwise not in form.tags:
        return None
    writes = [one.alias_info is not None for one in target._schema.arguments]
    return form if writes == [True] + [False] * (len(writes) - 1) else None


def _required(target: OpOverload) -> int:
    """How many arguments have no default."""
    arguments = target._schema.arguments
    return sum(not one.has_default_value() and not one.kwarg_only for one in arguments)


def _without_defaults(
    target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as torch's dispatcher tells them: none at the end that is the default."""
    entries = target._schema.arguments
    count = len(args)
    while count and _is_default(entries[count - 1], args[count - 1]):
        count -= 1
    defaults = {entry.name: entry for entry in entries}
    return args[:count], {
        name: value for name, value in kwargs.items() if not _is_default(defaults[name], value)
    }


def _is_default(entry: Any, value: Any) -> bool:
    default = entry.default_value
    return entry.has_default_value() and type(value) is type(default) and value == default


def _memory(value: torch.Tensor) -> int:
    storage: int = value.untyped_storage()._cdata
    return storage


def _layout(value: torch.Tensor) -> Any:
    return value.dtype, value.shape, value.stride(), value.storage_offset()
