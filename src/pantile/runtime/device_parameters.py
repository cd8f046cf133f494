"""An optimizer's hyper-parameters by the names and values they have on the device (spec 2.5).

    lossScaling_FLOAT                               the loss scale
    learningRate___specific___fc.weight             Adam, AdamW, RMSprop, LAMB
    weightDecay___specific___fc.weight
    scaledLearningRate0___specific___fc.weight      SGD: lr (1 - dampening) / loss scale
    weightDecayScaleFactor0___specific___fc.weight       1 - lr (1 - dampening) weight decay

They are told for each parameter, and a state that is loaded may set them for each parameter: then
groups are divided until the next `setOptimizer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pantile.optim.supported import rule_name
from pantile.runtime.optimizer import Update

_SCALE = "lossScaling_FLOAT"


def device_parameters(update: Update) -> dict[str, torch.Tensor]:
    """All hyper-parameters as the device applies them."""
    found = {_SCALE: torch.tensor(update.given_scale)}
    for group in update.bound.param_groups:
        values = _of_device(rule_name(update.bound), group, update.given_scale)
        for parameter in group["params"]:
            name = update.names[id(parameter)]
            for key, value in values.items():
                found[f"{key}___specific___{name}"] = torch.tensor(value)
    return found


def apply_parameters(update: Update, loaded: Mapping[str, torch.Tensor]) -> None:
    """Take over the hyper-parameters of a loaded state that differ from the optimizer's."""
    present = device_parameters(update)
    update.loaded = {name: value for name, value in loaded.items() if name in present}
    if all(torch.equal(present[name], value) for name, value in update.loaded.items()):
        return
    bound = update.bound
    rule, wanted = rule_name(bound), {**present, **update.loaded}
    if hasattr(bound, "loss_scaling"):
        bound.loss_scaling = float(wanted[_SCALE])
    groups = []
    for group in bound.param_groups:
        for parameter in group["params"]:
            end = f"___specific___{update.names[id(parameter)]}"
            values = {
                name.removesuffix(end): float(value)
                for name, value in wanted.items()
                if name.endswith(end)
            }
            settings = _of_torch(rule, values, group, float(wanted[_SCALE]))
            groups.append({**group, **settings, "params": [parameter]})
    bound.__dict__["param_groups"] = groups


def _of_device(rule: str, group: Mapping[str, Any], scale: float) -> dict[str, float]:
    lr, decay = float(group["lr"]), float(group.get("weight_decay", 0.0))
    if rule == "SGD":
        kept = 1.0 - float(group.get("dampening", 0.0))
        return {
            "scaledLearningRate0": lr * kept / scale,
            "weightDecayScaleFactor0": 1.0 - lr * kept * decay,
            "momentum": float(group.get("momentum", 0.0)),
        }
    return {"learningRate": lr, "weightDecay": decay}


def _of_torch(
    rule: str, values: Mapping[str, float], group: Mapping[str, Any], scale: float
) -> dict[str, float]:
    """The values of a group that give these on the device."""
    if rule != "SGD":
        return {"lr": values["learningRate"], "weight_decay": values["weightDecay"]}
    kept = 1.0 - float(group.get("dampening", 0.0))
    step = values["scaledLearningRate0"] * scale  # lr (1 - dampening)
    return {
        "lr": step / kept if kept else float(group["lr"]),
        "weight_decay": (1.0 - values["weightDecayScaleFactor0"]) / step if step else 0.0,
        "momentum": values["momentum"],
    }
