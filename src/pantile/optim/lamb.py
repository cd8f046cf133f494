"""LAMB: Adam's direction, with a step as long as the layer's weights allow.

direction = m̂ / (sqrt(v̂) + eps) + weight_decay · w
trust     = min(‖w‖, max_weight_norm) / ‖direction‖        1 if either norm is 0
w         = w - lr · trust · direction
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from pantile.errors import OptimizerError
from pantile.optim.accumulators import narrow_back, step_counter, widened, zeros_for
from pantile.optim.adam import update_moments
from pantile.optim.optimizer import Optimizer, given_only

_DEFAULTS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}
_MAX_WEIGHT_NORM = 65500.0


class LAMB(Optimizer, torch.optim.Optimizer):
    """Layer-wise adaptive moments for batch training.

    | name              | meaning                                     | default      |
    |-------------------|---------------------------------------------|--------------|
    | `lr`              | learning rate                               | 1e-3         |
    | `betas`           | decay of the two moments                    | (0.9, 0.999) |
    | `eps`             | added to the denominator                    | 1e-8         |
    | `weight_decay`    | share of the weight in the direction        | 1e-2         |
    | `bias_correction` | correct the moments for their start at zero | True         |
    | `max_weight_norm` | cap of ‖w‖ in the trust ratio               | 65500        |

    `first_order_momentum_accum_type` and `second_order_momentum_accum_type` are the types of
    `exp_avg` and `exp_avg_sq` (None = float32).
    `bias_correction` and `max_weight_norm` hold for all groups; `loss_scaling` and `accum_type`
    are those of `Optimizer`. An argument left at None counts as constant.
    """

    bias_correction: bool
    max_weight_norm: float
    first_order_momentum_accum_type: torch.dtype | None
    second_order_momentum_accum_type: torch.dtype | None

    attribute_names = (
        *("lr", "betas", "eps", "weight_decay"),
        *("bias_correction", "loss_scaling", "max_weight_norm"),
    )
    global_names = (
        *Optimizer.global_names,
        *("bias_correction", "max_weight_norm"),
        *("first_order_momentum_accum_type", "second_order_momentum_accum_type"),
    )
    accumulator_types: ClassVar[dict[str, str]] = {
        "exp_avg": "first_order_momentum_accum_type",
        "exp_avg_sq": "second_order_momentum_accum_type",
    }

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        bias_correction: bool | None = None,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
    ) -> None:
        given = given_only({"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        _check_hyper_parameters({**_DEFAULTS, **given}, max_weight_norm)
        torch.optim.Optimizer.__init__(self, params, {**_DEFAULTS, **given})
        self._configure(
            given,
            bias_correction=bias_correction,
            loss_scaling=loss_scaling,
            max_weight_norm=max_weight_norm,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )
        self.bias_correction = True if bias_correction is None else bias_correction
        self.max_weight_norm = _MAX_WEIGHT_NORM if max_weight_norm is None else max_weight_norm

    def _update_parameters(self) -> None:
        for group, param in self._with_grad():
            state = self._moments_of(param)
            kept = [param, state["exp_avg"], state["exp_avg_sq"]]
            *wide, gradient = widened([*kept, param.grad])
            self._update_one(group, wide, gradient, step=state["step"])
            narrow_back(kept, wide)

    def _moments_of(self, param: Any) -> dict[str, Tensor]:
        if param.grad.is_sparse or param.is_complex():
            raise OptimizerError(
                "LAMB does not support sparse gradients or complex parameters",
                fix="use torch.optim.SparseAdam, or torch.optim.Adam for complex parameters",
            )
        state: dict[str, Tensor] = self.state[param]
        if not state:
            state["step"] = step_counter()
            for name in self.accumulator_types:
                state[name] = zeros_for(param, self._requested_type(name))
        return state

    def _update_one(
        self, group: dict[str, Any], tensors: list[Tensor], gradient: Tensor, *, step: Tensor
    ) -> None:
        weight, exp_avg, exp_avg_sq = tensors
        step += 1
        update_moments(exp_avg, exp_avg_sq, gradient, group["betas"])
        direction = self._direction(group, exp_avg, exp_avg_sq, step=step)
        if group["weight_decay"] != 0:
            direction = direction.add(weight, alpha=group["weight_decay"])
        trust = _trust_ratio(weight, direction, self.max_weight_norm)
        weight.sub_(direction.mul_(trust).mul_(group["lr"]))

    def _direction(
        self, group: dict[str, Any], exp_avg: Tensor, exp_avg_sq: Tensor, *, step: Tensor
    ) -> Tensor:
        if not self.bias_correction:
            return exp_avg / exp_avg_sq.sqrt().add_(group["eps"])
        beta1, beta2 = group["betas"]
        count = step.item()
        correction = 1 - beta1**count
        root_correction = (1 - beta2**count) ** 0.5
        denominator = (exp_avg_sq.sqrt() / root_correction).add_(group["eps"])
        return torch.div(exp_avg, correction).div_(denominator)


def _trust_ratio(weight: Tensor, direction: Tensor, max_weight_norm: float) -> Tensor:
    weight_norm = torch.linalg.vector_norm(weight).clamp(max=max_weight_norm)
    direction_norm = torch.linalg.vector_norm(direction)
    usable = (weight_norm > 0) & (direction_norm > 0)
    one = torch.ones_like(weight_norm)
    # Divide by 1 where the ratio is not used: 0/0 would be NaN before it is replaced.
    return torch.where(usable, weight_norm / torch.where(usable, direction_norm, one), one)


def _check_hyper_parameters(values: dict[str, Any], max_weight_norm: float | None) -> None:
    betas = values["betas"]
    rules = (
        ("lr", values["lr"], values["lr"] >= 0, "at least 0"),
        ("eps", values["eps"], values["eps"] >= 0, "at least 0"),
        ("weight_decay", values["weight_decay"], values["weight_decay"] >= 0, "at least 0"),
        ("betas", betas, len(betas) == 2 and all(0 <= b < 1 for b in betas), "two in [0, 1)"),
        (
            "max_weight_norm",
            max_weight_norm,
            max_weight_norm is None or max_weight_norm >= 0,
            "at least 0",
        ),
    )
    for name, value, valid, wanted in rules:
        if not valid:
            raise OptimizerError(
                f"{name}={value!r} must be {wanted}", fix=f"pass {name} {wanted}, or leave it out"
            )
