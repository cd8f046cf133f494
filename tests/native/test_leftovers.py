"""What a compilation leaves behind is given back when native code takes over."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import pytest
import torch
from tests.native.runs import Net, batch, options, runs_natively, seeded

import poptorch
from pantile.runtime.native.leftovers import give_back
from pantile.runtime.native.loop_library import loop_library


@pytest.fixture
def held_by_mkl() -> Callable[[], int]:
    """How many bytes MKL holds."""
    library = loop_library()
    try:
        ask = library["mkl_serv_mem_stat"]
    except AttributeError:
        pytest.skip("this torch has no MKL within")
    ask.restype = ctypes.c_int64

    def held() -> int:
        return int(ask(ctypes.byref(ctypes.c_int())))

    return held


def product() -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randn(600, 700) @ torch.randn(700, 500)


def test_mkl_gives_back_what_products_have_left(held_by_mkl: Callable[[], int]) -> None:
    product()
    before = held_by_mkl()

    give_back()

    assert before > 1 << 19
    assert held_by_mkl() < before / 4


def test_products_go_on_while_memory_is_given_back() -> None:
    expected = product()
    wrong: list[int] = []

    def work() -> None:
        wrong.extend(i for i in range(40) if not torch.equal(product(), expected))

    worker = threading.Thread(target=work)
    worker.start()
    while worker.is_alive():
        give_back()

    assert not wrong


def test_a_model_that_runs_natively_leaves_nothing_in_mkl(held_by_mkl: Callable[[], int]) -> None:
    model = seeded(Net)
    executor = poptorch.trainingModel(model, options(), torch.optim.SGD(model.parameters(), lr=0.1))
    product()

    before = held_by_mkl()

    for _ in range(3):
        executor(*batch())

    assert runs_natively(executor)
    assert held_by_mkl() < before / 4
