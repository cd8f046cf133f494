"""Products under a causal mask: half of them is left out, and the results are the same."""

from __future__ import annotations

import math

import pytest
import torch
from tests.kernels.programs import Case, check, graph_of
from torch.nn import functional

from pantile.lowering.kernels.generate import written
from pantile.lowering.kernels.simplify import simplify
from pantile.lowering.kernels.triangles import Triangle, triangles

SHAPES = [(2, 3, 40, 40, 32), (1, 2, 130, 130, 64), (3, 1, 65, 65, 33), (1, 1, 96, 70, 40)]
"""Of queries and keys: batch, heads, queries, keys, width."""


def operands(batch: int, heads: int, queries: int, keys: int, width: int) -> list[torch.Tensor]:
    torch.manual_seed(queries)
    lengths = (queries, keys, keys, queries)
    return [torch.randn(batch, heads, length, width) for length in lengths]


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """As somebody would write it."""
    rows, columns = torch.arange(query.shape[-2])[:, None], torch.arange(key.shape[-2])
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return torch.softmax(scores.masked_fill(columns > rows, -math.inf), -1) @ value


def gradients(query, key, value, gradient) -> list[torch.Tensor]:
    """Of attention, with respect to its three operands."""

    def loss(*given: torch.Tensor) -> torch.Tensor:
        return (attention(*given) * gradient).sum()

    return list(torch.func.grad(loss, argnums=(0, 1, 2))(query, key, value))


def found(function, inputs) -> list[Triangle]:
    """The products of a function that are not computed whole."""
    graph = graph_of(function, inputs)
    simplify(graph)
    return sorted(
        triangles(list(graph.nodes)).products.values(), key=lambda triangle: triangle.value
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_causal_attention_and_its_gradients_are_those_of_the_formula(shape) -> None:
    query, key, value, gradient = operands(*shape)
    cases = [
        Case("forward", attention, (query, key, value)),
        Case("backward", gradients, (query, key, value, gradient)),
    ]

    check(cases, threads=(1, 2, 5))


def of_torch(query, key, value, gradient, *masks) -> list[torch.Tensor]:
    """Torch's own operator of attention, and its gradients."""
    aten, mask = torch.ops.aten, {"attn_mask": masks[0]} if masks else {}
    flash = aten._scaled_dot_product_flash_attention_for_cpu
    out, logs = flash(query, key, value, 0.0, True, **mask)
    back = aten._scaled_dot_product_flash_attention_for_cpu_backward
    return [out, *back(gradient, query, key, value, out, logs, 0.0, True, **mask)]


@pytest.mark.parametrize("masked", [False, True])
def test_torchs_own_causal_attention_is_that_of_eager(masked: bool) -> None:
    masks = (torch.randn(70, 70),) if masked else ()

    check([Case("flash", of_torch, (*operands(2, 2, 70, 70, 48), *masks))])


def test_each_product_of_attention_leaves_out_its_half() -> None:
    query, key, value, gradient = operands(*SHAPES[0])

    assert found(attention, (query, key, value)) == [Triangle.RESULT, Triangle.LEFT_LOWER]
    assert found(of_torch, (query, key, value, gradient)) == [
        *[Triangle.RESULT] * 3,
        *[Triangle.LEFT_LOWER] * 2,
        *[Triangle.LEFT_UPPER] * 2,
    ]


def test_a_long_chain_behind_a_product_is_followed_to_its_end() -> None:
    def function(query, key, value):
        scores = query @ key.transpose(-2, -1)
        for step in range(1200):
            scores = scores + step
        rows, columns = torch.arange(40)[:, None], torch.arange(40)
        return torch.where(columns <= rows, scores, 0.0) @ value

    assert found(function, operands(*SHAPES[0])[:3]) == [Triangle.RESULT, Triangle.LEFT_LOWER]


def test_scores_that_are_returned_are_computed_whole() -> None:
    def function(query, key, value):
        scores = query @ key.transpose(-2, -1)
        rows, columns = torch.arange(40)[:, None], torch.arange(40)
        return scores, torch.where(columns <= rows, scores, 0.0) @ value

    inputs = tuple(operands(*SHAPES[0])[:3])

    assert found(function, inputs) == [Triangle.LEFT_LOWER]
    check([Case("both", function, inputs)])


@pytest.mark.parametrize(
    "mask",
    [
        lambda rows, columns: columns < rows,
        lambda rows, columns: columns <= rows + 1,
        lambda rows, columns: columns >= rows,
    ],
    ids=["without the diagonal", "one more", "the other half"],
)
def test_other_masks_leave_out_nothing(mask) -> None:
    def function(scores, value):
        rows, columns = torch.arange(40)[:, None], torch.arange(40)
        return torch.where(mask(rows, columns), scores, 0.0) @ value

    inputs = (torch.randn(40, 40), torch.randn(40, 48))

    assert found(function, inputs) == []
    check([Case("mask", function, inputs)])


def test_halves_of_products_are_written_into_the_program() -> None:
    query, key, value, gradient = operands(*SHAPES[1])
    text = "".join(
        f.text for f in written(graph_of(gradients, (query, key, value, gradient))).functions
    )

    assert all(triangle.name in text for triangle in Triangle)


def test_an_update_that_counts_joins_its_gradient() -> None:
    def step(weight, count, x, y):
        new = count + 1
        weight.copy_(weight - x.t() @ y / new)
        count.copy_(new)
        return (x * 2,)

    inputs = (torch.randn(40, 48), torch.tensor(3.0), torch.randn(20, 40), torch.randn(20, 48))
    notes = [f.note for f in written(graph_of(step, inputs)).functions]

    assert sum("product" in note for note in notes) == 1
    assert len(notes) == 3  # the count, the product with its update, and what is returned
    check([Case("step", step, inputs)])


def test_a_count_that_is_read_later_is_not_written_over() -> None:
    def step(weight, count, x):
        new = count + 1
        weight.copy_(weight * new)
        count.copy_(new)
        return functional.relu(x @ x.t()) * count

    inputs = (torch.randn(7, 5), torch.tensor(3.0), torch.randn(33, 16))

    check([Case("step", step, inputs)])
