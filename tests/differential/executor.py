"""A training step through the public executor, compared with an eager step of the same SGD."""

from __future__ import annotations

import copy
import warnings

import torch
from tests.differential.harness import (
    SEED,
    Case,
    Outcome,
    Results,
    Verdict,
    by_name,
    copy_tensor,
    differs,
    error_name,
)

import poptorch
from pantile.errors import Error

RATE = 0.125


def judge_executor(case: Case) -> Verdict:
    """Compare outputs, parameters and buffers after one step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = eager_step(case)
        try:
            got = executor_step(case)
        except Error as error:
            return Verdict(Outcome.REFUSED, error.message, error_name(error))
    difference = differs(wanted, got)
    return Verdict(Outcome.WRONG, difference) if difference else Verdict(Outcome.BITWISE)


def eager_step(case: Case) -> Results:
    """Forward, backward and update by PyTorch."""
    module = copy.deepcopy(case.module)
    torch.manual_seed(SEED)
    returned = module(*[copy_tensor(t) for t in case.args])
    parameters = list(module.parameters())
    if parameters and returned[1].requires_grad:
        returned[1].backward()
        torch.optim.SGD(parameters, lr=RATE).step()
    return Results(outputs=by_name(returned), state=dict(module.state_dict()))


def executor_step(case: Case) -> Results:
    """The same by `poptorch.trainingModel`."""
    module = copy.deepcopy(case.module)
    parameters = list(module.parameters())
    if parameters:
        optimizer = torch.optim.SGD(parameters, lr=RATE)
        model = poptorch.trainingModel(module, optimizer=optimizer)
    else:
        model = poptorch.inferenceModel(module)
    torch.manual_seed(SEED)
    returned = model(*[copy_tensor(t) for t in case.args])
    return Results(outputs=by_name(returned), state=dict(module.state_dict()))
