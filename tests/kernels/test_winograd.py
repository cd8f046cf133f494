"""Which convolutions go the way of fewer multiplications, and that they are as good as torch's."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from tests.kernels.programs import Case, check, graph_of
from tests.kernels.test_convolution import AFTER, with_gradients

from pantile.lowering.kernels.generate import written


def texts(images: tuple[int, ...], outputs: int, **options: object) -> list[str]:
    """The kernels of a convolution of 3 x 3 taps and its gradients."""
    x, w = torch.randn(images), torch.randn(outputs, images[1], 3, 3)
    case = with_gradients("", (x, w, torch.randn(outputs)), options, AFTER["plain"])
    graph = graph_of(lambda *given: list(case.call(given)), case.inputs)
    return [function.text for function in written(graph).functions]


def ways(images: tuple[int, ...], outputs: int, **options: object) -> set[str]:
    names = {"WinogradForward": "forward", "WinogradInput": "input", "winograd_weight": "weight"}
    names |= {"winograd_scatter": "scatter"}
    found = texts(images, outputs, **options)
    return {
        way
        for name, way in names.items()
        if any(f"{name}<" in text and "pack" not in text for text in found)
    }


def test_all_three_directions_of_a_usual_layer() -> None:
    assert ways((8, 64, 16, 16), 64, padding=1) == {"forward", "input", "weight"}


def test_the_gradient_of_an_image_that_shrinks_has_the_tiles_of_the_results() -> None:
    assert ways((8, 32, 13, 13), 64) == {"forward", "scatter", "weight"}
    assert "scatter" not in ways((8, 64, 16, 16), 64, padding=2)


def test_few_images_keep_tiles_of_their_own_for_threads_to_share() -> None:
    assert "scatter" not in ways((1, 32, 13, 13), 64)


@pytest.mark.parametrize("options", [{"stride": 2}, {"dilation": 2}, {"padding": 3}])
def test_other_geometries_go_the_direct_way(options: dict[str, int]) -> None:
    assert ways((8, 64, 16, 16), 64, **options) == set()


def test_channels_that_fill_no_vector_go_the_direct_way() -> None:
    assert ways((8, 3, 16, 16), 64, padding=1) == {"input"}
    assert ways((8, 64, 16, 16), 33, padding=1) == {"forward"}


def test_a_large_weight_for_a_few_pixels_goes_the_direct_way() -> None:
    assert "forward" not in ways((1, 512, 4, 4), 512, padding=1)


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    padding = (rng.randrange(3), rng.randrange(3))
    high, wide = (3 + rng.randrange(14) for _ in padding)
    channels, filters = rng.choice([16, 32, 48]), rng.choice([16, 32, 48, 64, 80])
    x = torch.randn(rng.choice([1, 2, 7]), channels, high, wide)
    if rng.randrange(2):
        x = x.contiguous(memory_format=torch.channels_last)
    weight = torch.randn(filters, channels, 3, 3)
    if rng.randrange(3) == 0:
        weight = weight.contiguous(memory_format=torch.channels_last)
    kind = rng.choice(sorted(AFTER))
    name = f"{seed} {kind} {tuple(x.shape)} {tuple(weight.shape)} {padding}"
    return with_gradients(
        name, (x, weight, torch.randn(filters)), {"padding": padding}, AFTER[kind]
    )


@pytest.mark.parametrize("batch", range(2))
def test_random_layers_are_as_good_as_torchs(batch: int) -> None:
    check([random_case(seed) for seed in range(batch * 5, batch * 5 + 5)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_16_bits(dtype: torch.dtype) -> None:
    x, w = torch.randn(2, 32, 10, 9).to(dtype), (torch.randn(48, 32, 3, 3) / 17).to(dtype)
    check([Case("halves", lambda x, w: [F.conv2d(x, w, padding=1)], (x, w))])
