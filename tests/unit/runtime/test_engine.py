"""Which engine runs a model, and what is said when it is another one than asked for."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import poptorch


@pytest.mark.parametrize("engine", ["native", "tiered"])
def test_an_engine_that_is_not_there_yet_is_said_and_the_model_runs(engine, caplog):
    model, x = nn.Linear(3, 2), torch.randn(4, 3)

    with caplog.at_level(logging.WARNING, logger="poptorch::python"):
        result = poptorch.inferenceModel(model, poptorch.Options().engine(engine))(x)

    assert torch.equal(result, model(x))
    assert f"engine '{engine}' is not part of this version" in caplog.text


def test_the_default_engine_says_nothing(caplog):
    with caplog.at_level(logging.WARNING, logger="poptorch::python"):
        poptorch.inferenceModel(nn.Linear(3, 2))(torch.randn(4, 3))

    assert not caplog.text
