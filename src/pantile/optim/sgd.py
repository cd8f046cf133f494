"""Stochastic gradient descent with momentum: torch's rule."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.optim.sgd import sgd

from pantile.logging import logger
from pantile.optim.accumulators import narrow_back
from pantile.optim.optimizer import Optimizer, given_only, plain_step

_torch_step = plain_step(torch.optim.SGD)


class SGD(Optimizer, torch.optim.SGD):
    """Stochastic gradient descent.

    Beyond torch's arguments and those of `Optimizer`:

    | name                  | meaning                                                  | default |
    |-----------------------|----------------------------------------------------------|---------|
    | `use_combined_accum`  | one tensor for gradient accumulation and velocity        | False   |
    | `velocity_scaling`    | scale of that tensor (group attribute); neutral in result | 1.0     |
    | `velocity_accum_type` | type of the velocity; None = float32                     | None    |

    An argument left at None takes the library's default and counts as constant.
    """

    use_combined_accum: bool
    velocity_scaling: float
    velocity_accum_type: torch.dtype | None

    attribute_names = (
        *("lr", "momentum", "dampening", "weight_decay", "nesterov"),
        *("loss_scaling", "velocity_scaling", "max_grad_norm"),
    )
    global_names = (
        *Optimizer.global_names,
        *("use_combined_accum", "velocity_scaling", "velocity_accum_type"),
    )
    accumulator_types: ClassVar[dict[str, str]] = {"momentum_buffer": "velocity_accum_type"}

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        given = given_only(
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
            }
        )
        switches = {"maximize": maximize, "foreach": foreach, "differentiable": differentiable}
        torch.optim.SGD.__init__(self, params, **given, **given_only(switches))
        self._configure(
            given,
            loss_scaling=loss_scaling,
            velocity_scaling=velocity_scaling,
            use_combined_accum=use_combined_accum,
            accum_type=accum_type,
            velocity_accum_type=velocity_accum_type,
            max_grad_norm=max_grad_norm,
        )
        self.use_combined_accum = bool(use_combined_accum)
        self._set_velocity_scaling(velocity_scaling)

    def _set_velocity_scaling(self, given: float | None) -> None:
        self.velocity_scaling = 1.0 if given is None else given
        if self.use_combined_accum:
            self.defaults["velocity_scaling"] = self.velocity_scaling
            for group in self.param_groups:
                group.setdefault("velocity_scaling", self.velocity_scaling)
        elif given is not None:
            logger.warning(
                "velocity_scaling=%s has no effect: it is only used with use_combined_accum=True.",
                given,
            )

    def _update_parameters(self) -> None:
        if not self.mixes_types():
            _torch_step(self)
            return
        for group, param in self._with_grad():
            self._update_mixed(group, param)

    def _update_mixed(self, group: dict[str, Any], param: Any) -> None:
        kept_type = self._state_dtype(param, "momentum_buffer")
        has_velocity = group["momentum"] != 0
        wide_type = torch.promote_types(param.dtype, kept_type) if has_velocity else param.dtype
        velocity = self.state[param].get("momentum_buffer") if has_velocity else None
        weight = param.to(wide_type)
        buffers: list[Any] = [None if velocity is None else velocity.to(wide_type)]
        sgd(
            [weight],
            [param.grad.to(wide_type)],
            buffers,
            foreach=False,
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=group["maximize"],
        )
        narrow_back([param], [weight])
        if velocity is not None:
            narrow_back([velocity], buffers)
        elif has_velocity:
            # torch creates the velocity as a copy of the first gradient.
            self.state[param]["momentum_buffer"] = buffers[0].to(kept_type)
