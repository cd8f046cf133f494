"""RMSprop: torch's rule, and TensorFlow's.

                  torch                     TensorFlow (`use_tf_variant=True`)
average starts at 0                         1
divide by         sqrt(average) + eps       sqrt(average + eps)
momentum          v = m v + g / d           v = m v + lr g / d
                  w = w - lr v              w = w - v
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.rmsprop import rmsprop

from pantile.optim.accumulators import narrow_back, step_counter, widened, zeros_for
from pantile.optim.optimizer import Optimizer, given_only, plain_step

_torch_step = plain_step(torch.optim.RMSprop)


class RMSprop(Optimizer, torch.optim.RMSprop):
    """RMSprop.

    Beyond torch's arguments and those of `Optimizer` (there is no `max_grad_norm`):

    | name                               | meaning                                  | default |
    |------------------------------------|------------------------------------------|---------|
    | `first_order_momentum_accum_type`  | type of `momentum_buffer` and `grad_avg` | None    |
    | `second_order_momentum_accum_type` | type of `square_avg`; None = float32     | None    |
    | `use_tf_variant`                   | TensorFlow's rule                        | False   |

    An argument left at None takes the library's default and counts as constant.
    """

    first_order_momentum_accum_type: torch.dtype | None
    second_order_momentum_accum_type: torch.dtype | None
    use_tf_variant: bool

    attribute_names = (
        *("lr", "alpha", "eps", "weight_decay", "momentum", "centered"),
        *("loss_scaling", "use_tf_variant"),
    )
    global_names = (
        *Optimizer.global_names,
        *("first_order_momentum_accum_type", "second_order_momentum_accum_type"),
        "use_tf_variant",
    )
    accumulator_types: ClassVar[dict[str, str]] = {
        "square_avg": "second_order_momentum_accum_type",
        "momentum_buffer": "first_order_momentum_accum_type",
        "grad_avg": "first_order_momentum_accum_type",
    }

    def __init__(
        self,
        params: Any,
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        use_tf_variant: bool | None = None,
    ) -> None:
        given = given_only(
            {
                "lr": lr,
                "alpha": alpha,
                "eps": eps,
                "weight_decay": weight_decay,
                "momentum": momentum,
                "centered": centered,
            }
        )
        switches = {"foreach": foreach, "maximize": maximize, "differentiable": differentiable}
        torch.optim.RMSprop.__init__(self, params, **given, **given_only(switches))
        self._configure(
            given,
            loss_scaling=loss_scaling,
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
            use_tf_variant=use_tf_variant,
        )
        self.use_tf_variant = bool(use_tf_variant)

    def _update_parameters(self) -> None:
        if not self.use_tf_variant and not self.mixes_types():
            _torch_step(self)
            return
        for group, param in self._with_grad():
            state = self._averages_of(group, param)
            names = [name for name in self.accumulator_types if name in state]
            kept = [param, *(state[name] for name in names)]
            *wide, gradient = widened([*kept, param.grad])
            averages = dict(zip(names, wide[1:], strict=True))
            rule = _tensorflow_rule if self.use_tf_variant else _torch_rule
            rule(group, wide[0], gradient, averages, state["step"])
            narrow_back(kept, wide)

    def _averages_of(self, group: dict[str, Any], param: Tensor) -> dict[str, Tensor]:
        """The state of `param`, created in the types asked for."""
        state: dict[str, Tensor] = self.state[param]
        if not state:
            wanted = {
                "square_avg": True,
                "momentum_buffer": group["momentum"] > 0,
                "grad_avg": group["centered"],
            }
            state["step"] = step_counter()
            for name in (name for name, needed in wanted.items() if needed):
                state[name] = zeros_for(param, self._requested_type(name))
            if self.use_tf_variant:
                state["square_avg"].fill_(1.0)
        return state


def _torch_rule(
    group: dict[str, Any],
    weight: Tensor,
    gradient: Tensor,
    averages: dict[str, Tensor],
    step: Tensor,
) -> None:
    rmsprop(
        [weight],
        [gradient],
        [averages["square_avg"]],
        [averages["grad_avg"]] if group["centered"] else [],
        [averages["momentum_buffer"]] if group["momentum"] > 0 else [],
        [step],
        foreach=False,
        has_complex=weight.is_complex(),
        lr=group["lr"],
        alpha=group["alpha"],
        eps=group["eps"],
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        centered=group["centered"],
        maximize=group["maximize"],
    )


def _tensorflow_rule(
    group: dict[str, Any],
    weight: Tensor,
    gradient: Tensor,
    averages: dict[str, Tensor],
    step: Tensor,
) -> None:
    step += 1
    if group["maximize"]:
        gradient = -gradient
    if group["weight_decay"] != 0:
        gradient = gradient.add(weight, alpha=group["weight_decay"])
    alpha = group["alpha"]
    mean_square = averages["square_avg"]
    mean_square.mul_(alpha).addcmul_(gradient, gradient, value=1 - alpha)
    if group["centered"]:
        mean = averages["grad_avg"]
        mean.lerp_(gradient, 1 - alpha)
        denominator = mean_square.addcmul(mean, mean, value=-1).add_(group["eps"]).sqrt_()
    else:
        denominator = mean_square.add(group["eps"]).sqrt_()
    if group["momentum"] > 0:
        velocity = averages["momentum_buffer"]
        velocity.mul_(group["momentum"]).addcdiv_(gradient, denominator, value=group["lr"])
        weight.sub_(velocity)
    else:
        weight.addcdiv_(gradient, denominator, value=-group["lr"])
