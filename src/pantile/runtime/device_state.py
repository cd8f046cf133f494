"""PopTorch's view of an optimizer's device state: tensors and scalars by name (spec 2.5).

ipu_state   Accl1___fc.weight                    a state tensor
ipu_param   learningRate___specific___fc.weight  a hyper-parameter, as the device applies it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pantile.optim.supported import rule_name
from pantile.runtime.optimizer import Update

#: Update rule -> torch's name of a piece of state -> the device's.
_ADAM = {"step": "Step", "exp_avg": "Accl1", "exp_avg_sq": "Accl2"}
_KEYS: Mapping[str, Mapping[str, str]] = {
    "SGD": {"momentum_buffer": "Accl1"},
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "LAMB": _ADAM,
    "RMSprop": {
        "step": "Step",
        "square_avg": "Accl1",
        "momentum_buffer": "Accl2",
        "grad_avg": "Accl3",
    },
}


FACTOR = "lossScaleUpdateFactor"
"""What an adapting loss scale is multiplied by."""


class DeviceOptimizerState:
    """Reads and writes the state of the optimizer that an executor runs."""

    def __init__(self, update: Update, *, strict: bool) -> None:
        self._update = update
        self.strict = strict

    def read(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """All state tensors and hyper-parameters, copied."""
        update, state = self._update, {}
        names = _KEYS.get(rule_name(update.bound), {})
        for parameter, entries in update.bound.state.items():
            for key, value in entries.items():
                name = f"{names.get(key, key)}___{update.names[id(parameter)]}"
                state[name] = torch.as_tensor(value).detach().clone()
        if update.scale is not None:
            state[FACTOR] = torch.tensor(update.scale.factor)
        return state, self._parameters()

    def _parameters(self) -> dict[str, torch.Tensor]:
        update = self._update
        found = {"lossScaling_FLOAT": torch.tensor(update.given_scale)}
        for group in update.bound.param_groups:
            values = _scalars(update.bound, group, update.given_scale)
            for parameter in group["params"]:
                name = update.names[id(parameter)]
                for key, value in values.items():
                    found[f"{key}___specific___{name}"] = torch.tensor(value)
        return found

    def write(
        self, ipu_state: Mapping[str, torch.Tensor], ipu_param: Mapping[str, torch.Tensor]
    ) -> None:
        """Upload state tensors; entries that are not given keep their values.

        The hyper-parameters come with `param_groups` of the same dictionary, so strict mode takes
        them from the user's optimizer, into which they were loaded.
        """
        update = self._update
        if self.strict and ipu_param:
            update.replace(update.user)
        if update.scale is not None and FACTOR in ipu_state:
            update.scale.factor = float(ipu_state[FACTOR])
        names = _KEYS.get(rule_name(update.bound), {})
        for group in update.bound.param_groups:
            for parameter in group["params"]:
                own = update.names[id(parameter)]
                loaded = {key: ipu_state.get(f"{name}___{own}") for key, name in names.items()}
                new = {k: v.detach().clone() for k, v in loaded.items() if v is not None}
                if new:
                    update.bound.state[parameter].update(new)


def _scalars(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], scale: float
) -> dict[str, float]:
    """PopTorch's names and values for the hyper-parameters of a group."""
    lr, decay = float(group["lr"]), float(group.get("weight_decay", 0.0))
    if rule_name(optimizer) == "SGD":
        kept = 1.0 - float(group.get("dampening", 0.0))
        return {
            "scaledLearningRate0": lr * kept / scale,
            "weightDecayScaleFactor0": 1.0 - lr * kept * decay,
            "momentum": float(group.get("momentum", 0.0)),
        }
    return {"learningRate": lr, "weightDecay": decay}
