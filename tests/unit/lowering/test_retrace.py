"""Decomposing a program, on a thread of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
import torch

import poptorch
from pantile.lowering.retrace import retraced


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switches")
def test_a_compilation_in_the_background_does_not_disturb_a_capture() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    executor = poptorch.inferenceModel(model, poptorch.Options().engine("reference"))
    executor(torch.randn(1, 4))
    program = executor._compiled[0].program
    stop, failures = threading.Event(), []

    def compile_again_and_again() -> None:
        try:
            while not stop.is_set():
                retraced(program, {})
        except Exception as error:
            failures.append(error)

    methods = torch.nn.Module.__call__, torch.nn.Module.__getattr__
    thread = threading.Thread(target=compile_again_and_again)
    thread.start()
    try:
        for rows in range(2, 14):  # each shape is captured anew
            x = torch.randn(rows, 4)
            assert torch.equal(executor(x), model(x))
    finally:
        stop.set()
        thread.join()

    assert not failures
    assert methods == (torch.nn.Module.__call__, torch.nn.Module.__getattr__)
