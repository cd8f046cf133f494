"""Optimizers that step outside of a program."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop

from pantile.lightning.fast_kernels import fast_kernels

RULES = {
    "Adam": Adam,
    "AdamW with amsgrad": partial(AdamW, amsgrad=True),
    "SGD with momentum": partial(SGD, momentum=0.9, nesterov=True),
    "Adagrad": Adagrad,
    "a rule without fused kernels": RMSprop,
    "a user's wish": partial(Adam, foreach=True),
}


@pytest.mark.parametrize("name", RULES)
def test_steps_as_torch_does_and_leaves_no_trace(name: str) -> None:
    weights = [torch.randn(5, 3, requires_grad=True) for _ in range(2)]
    optimizers = [RULES[name]([weight], lr=0.1) for weight in weights]
    weights[1].data.copy_(weights[0].data)
    flags = dict(optimizers[0].param_groups[0], params=[])
    for _ in range(4):
        gradient = torch.randn(5, 3)
        for weight in weights:
            weight.grad = gradient.clone()
        with fast_kernels(optimizers[0]):
            optimizers[0].step()
        optimizers[1].step()

    torch.testing.assert_close(weights[0], weights[1], rtol=1e-6, atol=1e-7)
    assert dict(optimizers[0].param_groups[0], params=[]) == flags


def test_says_fused_while_the_step_runs() -> None:
    optimizer = Adam([torch.zeros(2, requires_grad=True)])

    with fast_kernels(optimizer):
        assert optimizer.param_groups[0]["fused"] is True
    assert optimizer.param_groups[0]["fused"] is None
