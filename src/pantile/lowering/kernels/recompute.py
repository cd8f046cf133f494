"""Large values that are cheap to compute are computed again where they are read much later.

    forward      y = gelu(x)      ── product(y)                     y = gelu(x)   ── product(y)
                 │  memory of y, kept across all other layers  ->
    backward     gradient(y)                                        y' = gelu(x)  ── gradient(y')

Only values that need nothing which would be gone by then: what they are computed from is in memory
anyway, because the backward reads it too (here x, for the derivative of gelu).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from math import prod

import torch
from torch import fx

from pantile.lowering.kernels.expressions import LOOKUPS, RULES, is_view
from pantile.lowering.kernels.pointwise import COSTS, POINTWISE
from pantile.lowering.kernels.types import shape_of

aten = torch.ops.aten

_LARGE = 1 << 18
"""Bytes: less is not worth it."""
_SMALL_PART = 16
"""What is smaller by this factor may be kept."""
_FAR = 8
"""So many kernels between two uses are far."""
_MOST_COST = 24.0
"""In additions for an element: what costs more is kept."""


def recompute(graph: fx.Graph, realised: Collection[fx.Node]) -> set[fx.Node]:
    """Change a graph in place; the values that are read by what is computed again."""
    return _Recomputation(graph, realised).run()


class _Recomputation:
    def __init__(self, graph: fx.Graph, realised: Collection[fx.Node]) -> None:
        self._graph, self._realised = graph, realised
        self._held: set[fx.Node] = set()
        self._place: dict[fx.Node, int] = {}
        kernels = 0
        for node in graph.nodes:
            self._place[node] = kernels
            kernels += node in realised and node.target not in POINTWISE

    def run(self) -> set[fx.Node]:
        """All values, the first ones first."""
        for node in list(self._graph.nodes):
            if node in self._realised and node.target in POINTWISE and _bytes(node) >= _LARGE:
                self._consider(node)
        return self._held

    def _consider(self, node: fx.Node) -> None:
        late = self._late(node)
        if not late:
            return
        first = min(late)
        found = self._cone(node, first)
        if found is None:
            return
        cone, large = found
        with self._graph.inserting_before(first):
            clones = self._cloned(cone, {})
            self._place.update(dict.fromkeys(clones.values(), self._place[first]))
            for user in late:
                self._redirect(user, node, clones)
        self._held |= large

    def _late(self, node: fx.Node) -> list[fx.Node]:
        """Who reads a value after the widest gap between its uses, if that is wide."""
        users = sorted(_readers(node))
        if any(user.op == "output" or user.target is aten.copy_.default for user in users):
            return []
        places = [self._place[node], *(self._place[user] for user in users)]
        gaps = [after - before for before, after in pairwise(places)]
        widest = max(gaps, default=0)
        return users[gaps.index(widest) :] if widest >= _FAR else []

    def _cone(self, node: fx.Node, first: fx.Node) -> tuple[list[fx.Node], set[fx.Node]] | None:
        """What must be computed again, and the large value it is computed from."""
        cone: set[fx.Node] = set()
        large: set[fx.Node] = set()
        cost, ahead = 0.0, [node]
        while ahead:
            other = ahead.pop()
            if other in cone:
                continue
            cone.add(other)
            cost += COSTS.get(other.target, 0.0) + (0.3 if other.target in POINTWISE else 0.0)
            for source in other.all_input_nodes:
                if _is_small(source, node):
                    continue
                if source in self._realised or source.op == "placeholder":
                    large.add(source)
                elif source.target in RULES and source.target not in LOOKUPS:
                    ahead.append(source)
                else:
                    return None
        if cost > _MOST_COST or len(large) > 1:
            return None
        if not all(self._is_there(source, first) for source in large):
            return None
        return sorted(cone), large

    def _is_there(self, source: fx.Node, when: fx.Node) -> bool:
        """Is a value in memory then, whatever is done here?"""
        if source.op == "placeholder":  # unless it is written by then
            return all(user.target is not aten.copy_.default for user in source.users)
        return any(not user < when for user in _readers(source))

    def _cloned(
        self, nodes: Iterable[fx.Node], clones: Mapping[fx.Node, fx.Node]
    ) -> dict[fx.Node, fx.Node]:
        done = dict(clones)
        for node in nodes:
            done[node] = self._graph.node_copy(node, lambda other: done.get(other, other))
        return done

    def _redirect(self, user: fx.Node, node: fx.Node, clones: dict[fx.Node, fx.Node]) -> None:
        """Let a node read the clone, also through views."""
        for source in user.all_input_nodes:
            path = _path(source, node)
            if path is not None:
                copies = self._cloned([view for view in path if view not in clones], clones)
                clones.update(copies)
                user.replace_input_with(source, clones[source])


def _path(source: fx.Node, node: fx.Node) -> list[fx.Node] | None:
    """The views from a value to what is read, the value not included; None if there is no way."""
    path: list[fx.Node] = []
    while source is not node:
        if not is_view(source):
            return None
        path.insert(0, source)
        source = source.all_input_nodes[0]
    return path


def _readers(node: fx.Node) -> set[fx.Node]:
    """Who computes with a value, seen through views."""
    found: set[fx.Node] = set()
    ahead = list(node.users)
    while ahead:
        user = ahead.pop()
        if is_view(user):
            ahead += user.users
        else:
            found.add(user)
    return found


def _bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


def _is_small(source: fx.Node, node: fx.Node) -> bool:
    value = source.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    return value.numel() * _SMALL_PART <= prod(shape_of(node))
