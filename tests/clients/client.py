"""A model somebody else wrote, and whether Pantile trains it to the same bits as eager PyTorch.

    client.build()   ──►  model, batches
        copy of model  ──►  for each batch: forward, backward, optimizer.step()        eager
        model          ──►  for each batch: poptorch.trainingModel(model, ...)(*batch)   Pantile

Both sides start each step from the same state of torch's random generator. Everything a training
script can see is compared bit for bit: outputs, parameters, buffers, optimizer state and the state
in which the random generator is left.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

import poptorch

STEPS = 3

Batch = dict[str, torch.Tensor]
Optimizer = Literal["adamw", "sgd"]


@dataclass(frozen=True)
class Client:
    """How to make one model (whose forward returns its loss first) and its random batches."""

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    optimizer: Optimizer = "adamw"
    refusal: str = ""
    """The error class and words of the refusal, for a model that no static graph can hold."""


@dataclass(frozen=True)
class Verdict:
    """What became of one client: `bitwise`, `refused` with a typed error, or `wrong`."""

    outcome: Literal["bitwise", "refused", "wrong"]
    detail: str = ""
    eager_seconds: float = 0.0
    pantile_seconds: float = 0.0


def judge(client: Client, *, steps: int = STEPS) -> Verdict:
    """Train the client both ways and compare."""
    torch.manual_seed(0)
    model = client.model().train()
    twin = copy.deepcopy(model)
    batches = [client.batch() for _ in range(steps)]
    seeds = range(100, 100 + steps)

    start = time.perf_counter()
    expected = list(_train_eagerly(twin, client.optimizer, batches, seeds))
    middle = time.perf_counter()
    try:
        difference = _first_difference(model, client.optimizer, batches, seeds, expected)
    except poptorch.Error as error:
        return Verdict("refused", f"{type(error).__name__}: {error}", middle - start)
    times = (middle - start, time.perf_counter() - middle)
    return Verdict("wrong" if difference else "bitwise", difference, *times)


def complaint(client: Client, verdict: Verdict) -> str:
    """Empty if the verdict is the one the client should get."""
    if client.refusal:
        expected = verdict.outcome == "refused" and client.refusal in verdict.detail
    else:
        expected = verdict.outcome == "bitwise"
    return "" if expected else f"{client.name} is {verdict.outcome}: {verdict.detail}"


def optimizer_of(model: nn.Module, kind: Optimizer) -> torch.optim.Optimizer:
    """The optimizer a client is trained with, over all its parameters."""
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)


Snapshot = dict[str, torch.Tensor]


def _train_eagerly(
    model: nn.Module, kind: Optimizer, batches: list[Batch], seeds: range
) -> Iterator[Snapshot]:
    optimizer = optimizer_of(model, kind)
    for batch, seed in zip(batches, seeds, strict=True):
        torch.manual_seed(seed)
        result = model(**batch)
        optimizer.zero_grad()
        loss_of(result).backward()
        optimizer.step()
        yield snapshot(model, optimizer, result)


def _first_difference(
    model: nn.Module, kind: Optimizer, batches: list[Batch], seeds: range, expected: list[Snapshot]
) -> str:
    optimizer = optimizer_of(model, kind)
    options = poptorch.Options().showCompilationProgressBar(False)
    executor = poptorch.trainingModel(model, options, optimizer)
    for step, (batch, seed, wanted) in enumerate(zip(batches, seeds, expected, strict=True)):
        # The first call also compiles, which must leave the generator alone.
        torch.manual_seed(seed)
        result = executor(**batch)
        difference = _compare(snapshot(model, optimizer, result), wanted)
        if difference:
            return f"step {step}: {difference}"
    return ""


def loss_of(result: Any) -> torch.Tensor:
    """The loss, which is the first or only thing a client returns."""
    loss = result[0] if isinstance(result, tuple) else result
    assert isinstance(loss, torch.Tensor)
    return loss


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer, result: Any) -> Snapshot:
    """Copies of all that a step leaves behind, by name; the loss comes first."""
    outputs = result if isinstance(result, tuple) else (result,)
    found = {f"output {i}": tensor for i, tensor in enumerate(outputs)}
    names = {parameter: name for name, parameter in model.named_parameters()}
    found |= {f"parameter {name}": parameter for parameter, name in names.items()}
    found |= {f"buffer {name}": buffer for name, buffer in model.named_buffers()}
    found |= {
        f"optimizer {key} of {names[parameter]}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if isinstance(value, torch.Tensor)
    }
    found["random state"] = torch.get_rng_state()
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def _compare(got: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> str:
    if got.keys() != wanted.keys():
        return f"different names: {sorted(got.keys() ^ wanted.keys())[:5]}"
    wrong = [name for name in wanted if not same_bits(got[name], wanted[name])]
    if not wrong:
        return ""
    return f"{len(wrong)} of {len(wanted)} differ, first {wrong[0]}"


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal dtype, shape and memory."""
    if a.dtype is not b.dtype or a.shape != b.shape:
        return False
    if a.is_floating_point():
        return torch.equal(_bits(a), _bits(b))
    return torch.equal(a, b)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The raw memory of a tensor, so that NaN equals NaN and 0.0 is not -0.0."""
    return tensor.contiguous().view(-1).view(torch.uint8)
