"""Adds calls to a graph, for passes that put several nodes in the place of one.

Each call gets the shape that torch's own rules give it, and the tag of the node it stands for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._subclasses import FakeTensor, FakeTensorMode

from pantile.program.calls import likeness
from pantile.program.nodes import new_call
from pantile.program.program import tag_of
from pantile.program.spec import NodeTag


class NodeWriter:
    """Writes nodes to `graph`, at its insertion point; their shapes are of the mode of `like`."""

    def __init__(self, graph: fx.Graph, like: fx.Graph | None = None) -> None:
        self.graph = graph
        self.tag = NodeTag()
        self._mode = _mode_of(like or graph)
        self._stand_ins: dict[fx.Node, Any] = {}
        self._known: dict[Any, Any] = {}

    @contextmanager
    def standing_for(self, node: fx.Node) -> Iterator[None]:
        """Nodes written inside stand for `node`: they have its tag."""
        before, self.tag = self.tag, tag_of(node)
        try:
            yield
        finally:
            self.tag = before

    @contextmanager
    def replacing(self, node: fx.Node) -> Iterator[None]:
        """Nodes written inside stand for `node`, and before it."""
        with self.graph.inserting_before(node), self.standing_for(node):
            yield

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """One more call."""
        name = target.__name__.partition(".")[0]
        node = new_call(self.graph, target, args, kwargs, name=name)
        node.meta["val"] = self._result(target, args, kwargs)
        if self.tag != NodeTag():
            node.meta["tag"] = self.tag
        return node

    def _result(self, target: Any, args: Any, kwargs: Any) -> Any:
        """What a call returns. An update calls the same for parameter after parameter."""
        key = (target, likeness((args, kwargs)))
        if key not in self._known or key[1] is None:
            values, named = fx.map_arg((args, kwargs), self._value_of)
            with self._mode:
                self._known[key] = target(*values, **named)
        return self._known[key]

    def placeholder(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> fx.Node:
        """One more input, behind the others."""
        last = next((n for n in reversed(self.graph.nodes) if n.op == "placeholder"), None)
        place = self.graph.inserting_after(last) if last else self.graph.inserting_before()
        with place:
            node = self.graph.placeholder("".join(c if c.isalnum() else "_" for c in name))
        self.set_shape(node, shape, dtype)
        return node

    def set_shape(self, node: fx.Node, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Say what a node holds."""
        with self._mode:
            node.meta["val"] = torch.empty(shape, dtype=dtype)

    def _value_of(self, node: fx.Node) -> Any:
        """A stand-in for the value of a node; a fused graph has values of two modes."""
        value = node.meta["val"]
        if isinstance(value, FakeTensor) and value.fake_mode is self._mode:
            return value
        if node not in self._stand_ins:
            self._stand_ins[node] = pytree.tree_map(self._converted, value)
        return self._stand_ins[node]

    def _converted(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        with self._mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


def _mode_of(graph: fx.Graph) -> FakeTensorMode:
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return FakeTensorMode()


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operator's call by name, defaults included."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    given = {entry.name: entry.default_value for entry in arguments}
    given.update(zip((entry.name for entry in arguments), node.args, strict=False))
    return {**given, **node.kwargs}
