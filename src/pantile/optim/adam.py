"""Adam and AdamW: torch's rules, and AdamW's without bias correction."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.adam import adam

from pantile.errors import OptimizerError
from pantile.optim.accumulators import narrow_back, step_counter, widened, zeros_for
from pantile.optim.optimizer import Optimizer, given_only, plain_step, refuse_amsgrad
from pantile.options.environment import strict as strict_by_environment

_torch_step = plain_step(torch.optim.Adam)

_ATTRIBUTES = ("lr", "betas", "eps", "weight_decay", "amsgrad", "loss_scaling", "max_grad_norm")
_TYPES = ("first_order_momentum_accum_type", "second_order_momentum_accum_type")


class _Moments(Optimizer):
    """State and update loop shared by Adam and AdamW."""

    first_order_momentum_accum_type: torch.dtype | None
    second_order_momentum_accum_type: torch.dtype | None

    attribute_names: ClassVar[tuple[str, ...]] = _ATTRIBUTES
    global_names: ClassVar[tuple[str, ...]] = (*Optimizer.global_names, *_TYPES)
    accumulator_types: ClassVar[dict[str, str]] = dict(
        zip(("exp_avg", "exp_avg_sq"), _TYPES, strict=True)
    )

    def _check_groups(self) -> None:
        refuse_amsgrad(self.param_groups)

    def _moments_of(self, param: Tensor) -> dict[str, Tensor]:
        """The state of `param`, created in the types asked for."""
        state: dict[str, Tensor] = self.state[param]
        if not state:
            state["step"] = step_counter()
            for name in self.accumulator_types:
                state[name] = zeros_for(param, self._requested_type(name))
        return state

    def _update_parameters(self) -> None:
        if not self.mixes_types():
            _torch_step(self)
            return
        for group, param in self._with_grad():
            self._update_mixed(group, param)

    def _update_mixed(self, group: dict[str, Any], param: Any) -> None:
        state = self._moments_of(param)
        kept = [param, state["exp_avg"], state["exp_avg_sq"]]
        *wide, gradient = widened([*kept, param.grad])
        beta1, beta2 = group["betas"]
        adam(
            [wide[0]],
            [gradient],
            [wide[1]],
            [wide[2]],
            [],
            [state["step"]],
            foreach=False,
            amsgrad=False,
            has_complex=param.is_complex(),
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
            decoupled_weight_decay=group["decoupled_weight_decay"],
        )
        narrow_back(kept, wide)


class Adam(_Moments, torch.optim.Adam):
    """Adam, with weight decay as an L2 penalty. `amsgrad` is refused.

    Beyond torch's arguments and those of `Optimizer`: `first_order_momentum_accum_type` and
    `second_order_momentum_accum_type`, the types of `exp_avg` and `exp_avg_sq` (None = float32).
    An argument left at None takes the library's default and counts as constant.
    """

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        given = _given(lr, betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        switches = _switches(foreach, maximize, capturable, differentiable, fused)
        torch.optim.Adam.__init__(self, params, **given, **switches)
        self._check_groups()
        self._configure(
            given,
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
            max_grad_norm=max_grad_norm,
        )


class AdamW(_Moments, torch.optim.AdamW):
    """Adam with decoupled weight decay. `amsgrad` is refused.

    Beyond the arguments of `Adam`: `bias_correction` (default True). False leaves the moments
    uncorrected; PopTorch accepted it but corrected all the same, which strict mode reproduces.
    """

    bias_correction: bool

    attribute_names = (*_ATTRIBUTES, "bias_correction")
    global_names = (*_Moments.global_names, "bias_correction")

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        given = _given(lr, betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        switches = _switches(foreach, maximize, capturable, differentiable, fused)
        torch.optim.AdamW.__init__(self, params, **given, **switches)
        self._check_groups()
        self._configure(
            given,
            loss_scaling=loss_scaling,
            bias_correction=bias_correction,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
            max_grad_norm=max_grad_norm,
        )
        self.bias_correction = True if bias_correction is None else bias_correction

    def _update_parameters(self) -> None:
        if self.bias_correction or strict_by_environment():
            super()._update_parameters()
            return
        for group, param in self._with_grad():
            self._update_uncorrected(group, param)

    def _update_uncorrected(self, group: dict[str, Any], param: Any) -> None:
        state = self._moments_of(param)
        kept = [param, state["exp_avg"], state["exp_avg_sq"]]
        *wide, gradient = widened([*kept, param.grad])
        weight, exp_avg, exp_avg_sq = wide
        state["step"] += 1
        if group["maximize"]:
            gradient = -gradient
        if group["weight_decay"] != 0:
            weight.mul_(1 - group["lr"] * group["weight_decay"])
        update_moments(exp_avg, exp_avg_sq, gradient, group["betas"])
        weight.addcdiv_(exp_avg, exp_avg_sq.sqrt().add_(group["eps"]), value=-group["lr"])
        narrow_back(kept, wide)


def update_moments(
    exp_avg: Tensor, exp_avg_sq: Tensor, gradient: Tensor, betas: tuple[float, float]
) -> None:
    """Move the running averages of the gradient and of its square, as torch's Adam does."""
    beta1, beta2 = betas
    exp_avg.lerp_(gradient, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)


def _given(
    lr: float | None, betas: tuple[float, float] | None, **others: float | bool | None
) -> dict[str, Any]:
    if betas is not None and len(betas) != 2:
        raise OptimizerError(
            f"betas={betas!r} must be two numbers", fix="pass betas=(0.9, 0.999), or leave it out"
        )
    return given_only({"lr": lr, "betas": betas, **others})


def _switches(
    foreach: bool | None,
    maximize: bool | None,
    capturable: bool | None,
    differentiable: bool | None,
    fused: bool | None,
) -> dict[str, Any]:
    return given_only(
        {
            "foreach": foreach,
            "maximize": maximize,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
        }
    )
