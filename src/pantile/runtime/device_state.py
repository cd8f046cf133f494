"""PopTorch's view of an optimizer's device state: tensors and scalars by name (spec 2.5).

ipu_state   Accl1___fc.weight                    a state tensor
ipu_param   learningRate___specific___fc.weight  a hyper-parameter, as the device applies it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from pantile.optim.initial_state import initial_state
from pantile.optim.supported import rule_name
from pantile.runtime.device_parameters import apply_parameters, device_parameters
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
        for parameter, entries in self._entries():
            for key, value in entries.items():
                name = f"{names.get(key, key)}___{update.names[id(parameter)]}"
                told = torch.as_tensor(value).detach().clone()
                state[name] = self._per_group(parameter, told)
        if update.scale is not None:
            state[FACTOR] = torch.tensor(update.scale.factor)
        return state, {**device_parameters(update), **update.loaded}

    def _entries(self) -> Iterator[tuple[Any, Mapping[str, Any]]]:
        """What there is of state; on a device of its own, what there will be as well."""
        bound = self._update.bound
        if not self.strict:
            yield from bound.state.items()
            return
        for group in bound.param_groups:
            for parameter in group["params"]:
                made = bound.state.get(parameter)
                yield parameter, made or self._initial(group, parameter)

    def _per_group(self, parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """A count that all groups of replicas share is told for each of them."""
        groups = self._update.groups_of(parameter)
        return value.expand(groups).clone() if self.strict and groups and not value.dim() else value

    def _initial(self, group: Mapping[str, Any], parameter: torch.Tensor) -> dict[str, Any]:
        if id(parameter) not in self._update.names or not parameter.requires_grad:
            return {}
        return initial_state(self._update.bound, group, self._update.whole(parameter))

    def write(
        self, ipu_state: Mapping[str, torch.Tensor], ipu_param: Mapping[str, torch.Tensor]
    ) -> None:
        """Upload state tensors; entries that are not given keep their values.

        The hyper-parameters come with `param_groups` of the same dictionary, so strict mode takes
        them from the user's optimizer, into which they were loaded, and then those that differ.
        """
        update = self._update
        if self.strict and ipu_param:
            update.replace(update.user)
            apply_parameters(update, ipu_param)
        if update.scale is not None and FACTOR in ipu_state:
            update.scale.factor = float(ipu_state[FACTOR])
        names = _KEYS.get(rule_name(update.bound), {})
        for group in update.bound.param_groups:
            for parameter in group["params"]:
                own = update.names[id(parameter)]
                loaded = {key: ipu_state.get(f"{name}___{own}") for key, name in names.items()}
                new = {k: v.detach().clone() for k, v in loaded.items() if v is not None}
                if update.groups_of(parameter) and "step" in new:
                    new["step"] = new["step"].flatten()[0].clone()
                if new:
                    rest = self._initial(group, parameter) if self.strict else {}
                    update.bound.state[parameter] = {
                        **rest,
                        **update.bound.state[parameter],
                        **new,
                    }
