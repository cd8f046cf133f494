"""Copies that turn rows into columns: a square of vectors at a time, bits as they were."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.programs import Case, check, compiled, graph_of

from pantile.lowering.kernels.generate import written
from pantile.lowering.kernels.source import sources

SHAPES = [(64, 25), (25, 64), (16, 8), (17, 33), (100, 16), (3, 64, 25), (2, 3, 40, 31), (8, 257)]


def turned(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-1, -2).contiguous()


def flattened(x: torch.Tensor) -> torch.Tensor:
    """Images with their channels side by side, as what comes behind a convolution."""
    return x.flatten(1)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_number_is_where_it_belongs(threads: int):
    inputs = [torch.randn(shape) for shape in SHAPES]
    images = torch.randn(5, 32, 7, 9).to(memory_format=torch.channels_last)
    program = compiled(lambda images, *xs: [flattened(images), *map(turned, xs)], [images, *inputs])

    results = program.run([images, *inputs], threads).results

    assert torch.equal(results[0], flattened(images))
    assert all(torch.equal(y, turned(x)) for x, y in zip(inputs, results[1:], strict=True))


def test_numbers_that_are_none_keep_their_bits():
    bits = torch.full((64, 32), 0x7FA12345, dtype=torch.int32)  # would be another NaN if computed
    (result,) = compiled(turned, [bits.view(torch.float32)]).run([bits.view(torch.float32)]).results

    assert (result.view(torch.int32) == 0x7FA12345).all()


def _text(x: torch.Tensor) -> str:
    graph = graph_of(lambda x: [turned(x)], [x])
    return "".join(sources(written(graph), 1))


def test_only_large_matrices_of_floats_go_by_squares():
    assert "transposed_copy(p" in _text(torch.randn(64, 25))
    assert "transposed_copy" not in _text(torch.randn(64, 5))
    assert "transposed_copy" not in _text(torch.randn(64, 25).bfloat16())


def test_a_matrix_that_is_turned_in_its_own_memory_is_right():
    def turned_in_place(p: torch.Tensor) -> torch.Tensor:
        p.copy_(p.t().clone())
        return p.sum()

    check([Case("", turned_in_place, (torch.randn(48, 48),))])


def test_what_computes_is_not_a_copy():
    check([Case("", lambda x: turned(x) * 2 + 1, (torch.randn(64, 25),))])
