"""The updates of torch's fused optimizers, as formulas.

`_fused_adam` and its kin are kernels for many parameters at once that no compiler looks into.
Here each parameter gets the formula the kernel computes, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from pantile.errors import ProgramError
from pantile.passes.formula import Operand, Term

aten = torch.ops.aten

Arguments = Mapping[str, Any]
"""The arguments of a fused kernel by name: terms, lists of terms, and plain values."""

Results = tuple[list[Term], ...]


def _sgd(given: Arguments) -> Results:
    buffers: list[Term] = []
    weights: list[Term] = []
    for i, (weight, raw) in enumerate(zip(given["self"], given["grads"], strict=True)):
        gradient = _decayed(_signed(raw, given), weight, given["weight_decay"])
        if given["momentum_buffer_list"]:
            buffer = _momentum(given["momentum_buffer_list"][i], gradient, given)
            buffers.append(buffer)
            nesterov = given["nesterov"]
            gradient = gradient + buffer * given["momentum"] if nesterov else buffer
        weights.append(weight - gradient * given["lr"])
    return weights, given["grads"], buffers


def _momentum(buffer: Term, gradient: Term, given: Arguments) -> Term:
    if given["is_first_step"]:
        return gradient
    momentum: Operand = given["momentum"]
    dampening: Operand = given["dampening"]
    return buffer * momentum + gradient * (1 - dampening)


def _adam(given: Arguments, *, decoupled: bool = False) -> Results:
    results: Results = ([], given["grads"], [], [], [])
    weights, _, averages, squares, largest = results
    for i, (weight, raw) in enumerate(zip(given["self"], given["grads"], strict=True)):
        gradient = _signed(raw, given)
        if decoupled:
            weight = weight * (1 - given["lr"] * given["weight_decay"])
        else:
            gradient = _decayed(gradient, weight, given["weight_decay"])
        beta1, beta2 = given["beta1"], given["beta2"]
        average = given["exp_avgs"][i] * beta1 + gradient * (1 - beta1)
        square = given["exp_avg_sqs"][i] * beta2 + gradient * gradient * (1 - beta2)
        averages.append(average)
        squares.append(square)
        second = square
        if given["amsgrad"]:
            second = given["max_exp_avg_sqs"][i].call(aten.maximum.default, square)
            largest.append(second)
        step = given["state_steps"][i]
        root = _root(1 - beta2**step)
        size = given["lr"] / (1 - beta1**step)
        weights.append(weight - average / (second.sqrt() / root + given["eps"]) * size)
    return results


def _adamw(given: Arguments) -> Results:
    return _adam(given, decoupled=True)


def _adagrad(given: Arguments) -> Results:
    sums: list[Term] = []
    weights: list[Term] = []
    for i, (weight, raw) in enumerate(zip(given["self"], given["grads"], strict=True)):
        gradient = _decayed(_signed(raw, given), weight, given["weight_decay"])
        size = given["lr"] / (1 + (given["state_steps"][i] - 1) * given["lr_decay"])
        total = given["state_sums"][i] + gradient * gradient
        sums.append(total)
        weights.append(weight - gradient / (total.sqrt() + given["eps"]) * size)
    return weights, given["grads"], sums, given["state_steps"]


def _signed(gradient: Term, given: Arguments) -> Term:
    return -gradient if given["maximize"] else gradient


def _decayed(gradient: Term, weight: Term, decay: Operand) -> Term:
    if not isinstance(decay, Term) and decay == 0:
        return gradient
    return gradient + weight * decay


def _root(value: Operand) -> Operand:
    return value.sqrt() if isinstance(value, Term) else value**0.5


_KERNELS: dict[str, Callable[[Arguments], Results]] = {
    "_fused_sgd": _sgd,
    "_fused_adam": _adam,
    "_fused_adamw": _adamw,
    "_fused_adagrad": _adagrad,
}

COUNTERS = "state_steps"
"""The argument whose tensors a fused kernel reads as numbers."""


def is_fused_update(target: object) -> bool:
    """True for a fused update in its form that returns the new values."""
    return isinstance(target, torch._ops.OpOverload) and (
        target._schema.name.removeprefix("aten::") in _KERNELS
    )


def fused_update(target: Any, given: Arguments) -> Results:
    """What the kernel `target` returns for these arguments."""
    for name in ("grad_scale", "found_inf"):
        if given[name] is not None:
            raise ProgramError(
                f"{target} with {name} has no formula",
                fix='use Options.engine("reference"), or scale the loss with loss_scaling',
            )
    return _KERNELS[target._schema.name.removeprefix("aten::")](given)
