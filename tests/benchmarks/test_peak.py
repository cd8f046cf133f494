"""How many operations a product or convolution has, and the profile of a small step."""

from __future__ import annotations

import pytest
import torch
from benchmarks.peak import _of_convolution, measured, table
from benchmarks.workloads import WORKLOADS


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation"),
    [(8, 3, 1, 1, 1), (9, 3, 2, 1, 1), (7, 5, 1, 0, 1), (12, 3, 1, 2, 2), (4, 1, 2, 0, 1)],
)
def test_a_convolution_multiplies_data_but_no_padding(
    size: int, kernel: int, stride: int, padding: int, dilation: int
) -> None:
    image, weight = torch.ones(2, 3, size, size), torch.ones(4, 3, kernel, kernel)
    out = torch.conv2d(image, weight, None, stride, padding, dilation)

    pairs = [(number, number) for number in (stride, padding, dilation)]
    found = _of_convolution(image.shape, weight.shape, out.shape, pairs)

    assert found == 2 * out.sum()  # every product of two ones is one multiplication


def test_the_profile_of_a_step_has_the_operations_of_its_products(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(tmp_path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        profile = measured(WORKLOADS["W2"])
    finally:
        torch.set_num_threads(threads)

    # Forward, gradient of the weight, and gradient of the input for all layers but the first.
    layers = [(64, 128), (128, 128), (128, 10)]
    forward = sum(2 * 16 * a * b for a, b in layers)
    wanted = 3 * forward - 2 * 16 * 64 * 128
    assert sum(group.operations for group in profile.groups.values()) == wanted
    assert profile.peak > 1e9
    assert "product" in table("W2", profile)
