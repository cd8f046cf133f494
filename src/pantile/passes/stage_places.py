"""Where in a pipeline each node of a program runs.

    place     0    1    2    3    4    5
    stage     0F   1F   2F   2B   1B   0B        three stages: forward in order, then back

A node runs where its tag says, but never before what it reads. That matters for what tags get
wrong: the sum of two gradients of a tied weight belongs to the later of the two, whatever op
autograd had at hand when it added them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

from torch import fx

from pantile.program.program import WRITE, tag_of


def place_of(phase: str, stage: int, stages: int) -> int:
    """The place of a stage's forward or backward."""
    return 2 * stages - 1 - stage if phase == "backward" else stage


def stage_at(place: int, stages: int) -> int:
    """The stage that runs at a place."""
    return min(place, 2 * stages - 1 - place)


def settle(graph: fx.Graph, wanted: Mapping[fx.Node, int]) -> dict[fx.Node, int]:
    """The place of every node in `wanted`: there, or later if what it reads comes later."""
    places: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node in wanted:
            read = max((places.get(source, 0) for source in node.all_input_nodes), default=0)
            part = node.target is operator.getitem and node.args[0] in places
            places[node] = read if part else max(wanted[node], read)
    return places


def stage_places(graph: fx.Graph, stages: int, *, training: bool) -> dict[fx.Node, int]:
    """The place of every operator of a program whose tags hold stages; writes have none.

    Without training everything is forward, also gradients that forward computes for itself.
    """
    wanted = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.target is not WRITE:
            tag = tag_of(node)
            stage = min(tag.stage, stages - 1)
            wanted[node] = place_of(tag.phase if training else "forward", stage, stages)
    places = settle(graph, wanted)
    return places if training else {n: min(p, stages - 1) for n, p in places.items()}
