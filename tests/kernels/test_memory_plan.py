"""What is kept until the backward, and what is written over what."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.kernels.programs import Case, check, graph_of

from pantile.lowering.kernels.generate import written
from pantile.lowering.kernels.memory import Buffer, Life, Place, place_buffers, shared_places
from pantile.lowering.kernels.source import place

ROWS, WIDTH = 256, 384
LARGE = ROWS * WIDTH * 4


def gradients(layer: Callable[[torch.Tensor], torch.Tensor], layers: int) -> Case:
    """The gradients of weights of a row of products, each behind a layer."""
    torch.manual_seed(layers)
    weights = [torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(layers)]

    def loss(given: tuple[torch.Tensor, ...], x: torch.Tensor) -> torch.Tensor:
        for weight in given:
            x = layer(x) @ weight
        return x.square().sum()

    def function(x: torch.Tensor, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.func.grad(loss)(given, x))

    return Case(f"{layers} layers", function, (torch.randn(ROWS, WIDTH), *weights))


def arena(case: Case) -> int:
    return place(written(graph_of(lambda *given: list(case.call(given)), case.inputs)))


@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.functional.gelu,
        lambda x: torch.nn.functional.layer_norm(x, (WIDTH,)),
        lambda x: torch.relu(torch.nn.functional.layer_norm(x, (WIDTH,))) * 2,
    ],
    ids=["gelu", "norm", "norm and relu"],
)
def test_a_layer_between_products_keeps_one_value_until_the_backward(
    layer: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    more, fewer = (arena(gradients(layer, layers)) for layers in (16, 12))

    statistics = 2 * ROWS * 4
    assert LARGE <= (more - fewer) / 4 <= LARGE + statistics


def test_what_is_computed_again_gives_the_same_gradients() -> None:
    check([gradients(torch.nn.functional.gelu, 9)], threads=(1, 2))


def test_a_mask_of_dropout_is_kept_as_one_byte() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        mask = (torch.sin(x) > 0).float() * 1.25
        return [(y * mask).sum(0), (mask + y).sum(1), (mask * 3 - y).sum(0)]

    writer = written(graph_of(function, (torch.randn(64, 48), torch.randn(64, 48))))

    masks = [buffer.cpp for buffer in writer.buffers if buffer.shape == (64, 48)]
    assert masks == ["float", "float", "bool"]  # the two inputs, and the mask


def buffer(name: str, floats: int = 16) -> Buffer:
    return Buffer(name, "float", (floats,), (1,), Place.ARENA, size=floats)


def test_a_result_takes_the_place_of_what_is_read_for_the_last_time() -> None:
    a, b, c = buffer("a"), buffer("b"), buffer("c")
    lives = [Life(a, 0, 1), Life(b, 1, 2), Life(c, 2, 3)]

    peak = place_buffers(shared_places(lives, {b: [a], c: [b]}))

    assert peak == a.bytes
    assert a.home is b.home is c.home is a


def test_a_value_that_is_read_later_keeps_its_place() -> None:
    a, b = buffer("a"), buffer("b")

    peak = place_buffers(shared_places([Life(a, 0, 3), Life(b, 1, 2)], {b: [a]}))

    assert peak == a.bytes + b.bytes
    assert b.home is b


def test_only_one_result_takes_a_place() -> None:
    a, b, c = buffer("a"), buffer("b"), buffer("c")
    lives = [Life(a, 0, 1), Life(b, 1, 2), Life(c, 1, 2)]

    peak = place_buffers(shared_places(lives, {b: [a], c: [a]}))

    assert peak == 2 * a.bytes


def test_buffers_that_live_at_a_time_lie_apart() -> None:
    torch.manual_seed(3)
    first = torch.randint(0, 30, (80,)).tolist()
    long = torch.randint(0, 12, (80,)).tolist()
    size = torch.randint(1, 900, (80,)).tolist()
    lives = [
        Life(buffer(f"b{i}", n), f, f + d)
        for i, (n, f, d) in enumerate(zip(size, first, long, strict=True))
    ]

    peak = place_buffers(lives)

    for one in lives:
        assert 0 <= one.buffer.offset <= peak - one.buffer.bytes
        for other in lives:
            if one is not other and one.first <= other.last and other.first <= one.last:
                ends = [x.buffer.offset + x.buffer.bytes for x in (one, other)]
                assert ends[0] <= other.buffer.offset or ends[1] <= one.buffer.offset


def test_buffers_take_no_more_than_live_at_a_time_where_the_longest_life_comes_first() -> None:
    # By first use, or the largest first, it would be nine lines of memory.
    a, b, c, d = buffer("a", 64), buffer("b", 48), buffer("c", 32), buffer("d", 48)
    lives = [Life(a, 0, 2), Life(b, 2, 5), Life(c, 3, 6), Life(d, 3, 5)]

    peak = place_buffers(lives)

    assert peak == b.bytes + c.bytes + d.bytes


def test_results_over_their_operands_are_right() -> None:
    def chain(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        a = (x @ y).sin() * 2
        b = a - a.amax(1, keepdim=True)
        c = b.exp() / (1 + b.exp().sum(1, keepdim=True))
        d = c + c.t()  # another place of c is read: not over it
        return [d @ d, (c * d).sum(0)]

    torch.manual_seed(0)
    check([Case("chain", chain, (torch.randn(70, 70), torch.randn(70, 70)))])


def test_a_copy_serves_a_product_and_the_one_with_its_transpose() -> None:
    def both(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        mixed = x.sin().view(4, 3, 8, 5).permute(0, 2, 1, 3).reshape(32, 15)  # no plain strides
        return [mixed @ y, mixed.t() @ z]

    torch.manual_seed(1)
    case = Case("both", both, (torch.randn(4, 120), torch.randn(15, 20), torch.randn(32, 20)))
    writer = written(graph_of(lambda *given: list(case.call(given)), case.inputs))

    assert sum(function.note.startswith("copy of") for function in writer.functions) == 1
    check([case])
