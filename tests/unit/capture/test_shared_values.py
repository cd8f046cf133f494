"""Stand-ins of a finished graph."""

from __future__ import annotations

import torch
from torch import fx
from torch._subclasses import FakeTensorMode

from pantile.capture.shared_values import share_values
from pantile.program.spec import NodeTag


def graph_with(*metas: dict[str, object]) -> fx.Graph:
    graph = fx.Graph()
    for number, meta in enumerate(metas):
        graph.placeholder(f"p{number}").meta.update(meta)
    return graph


def test_values_of_one_shape_type_and_strides_share_a_stand_in() -> None:
    with FakeTensorMode():
        values = [
            torch.empty(4, 6),
            torch.empty(4, 6),
            torch.empty(6, 4).t(),
            torch.empty(4, 6, dtype=torch.float64),
            torch.empty(4, 6, requires_grad=True),
        ]
    graph = graph_with(*({"val": value} for value in values))

    share_values(graph)

    first, second, *others = (node.meta["val"] for node in graph.nodes)
    assert first is second is values[0]
    assert all(one is value for one, value in zip(others, values[2:], strict=True))


def test_real_tensors_and_numbers_stay_as_they_are() -> None:
    values = [torch.ones(3), torch.ones(3), 1, 1.0]
    graph = graph_with(*({"val": value} for value in values))

    share_values(graph)

    after = [node.meta["val"] for node in graph.nodes]
    assert all(one is value for one, value in zip(after, values, strict=True))


def test_equal_tags_become_one() -> None:
    graph = graph_with(
        {"tag": NodeTag(module="a")}, {"tag": NodeTag(module="a")}, {"tag": NodeTag()}
    )

    share_values(graph)

    first, second, third = (node.meta["tag"] for node in graph.nodes)
    assert first is second
    assert third == NodeTag()
