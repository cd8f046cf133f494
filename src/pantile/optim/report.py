"""An optimizer in the log as the device gets it, one line for the defaults and one a group.

Updating graph optimizer with SGD: defaultLearningRate=0.01, defaultMomentum=0 (const), …
Updating group 0 optimizer with SGD: learningRate=0.01, momentum=0 (const), …

Two optimizers with the same lines are the same to the device, whichever class they are of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from pantile.optim.attributes import Attribute, OptimizerAttributes

_NAMES = {
    "lr": ("learningRate",),
    "betas": ("beta1", "beta2"),
    "weight_decay": ("weightDecay",),
    "velocity_scaling": ("velocityScaling",),
}
_ACCUMULATORS = {
    "accum_type": "accumType",
    "velocity_accum_type": "firstOrderMomentumAccumType",
    "first_order_momentum_accum_type": "firstOrderMomentumAccumType",
    "second_order_momentum_accum_type": "secondOrderMomentumAccumType",
}
_UNSCALED = Attribute(1.0, constant=True)


def report_lines(attributes: OptimizerAttributes) -> tuple[str, ...]:
    """What is said of an optimizer."""
    kind = attributes.type_name
    groups = [_with_velocity(attributes, group) for group in attributes.groups]
    default = _with_velocity(attributes, attributes.defaults)
    shared = [*_named(default, "default"), *_shared(attributes)]
    return (
        f"Updating graph optimizer with {kind}: {', '.join(shared)}",
        *(
            f"Updating group {index} optimizer with {kind}: {', '.join(_named(group, ''))}"
            for index, group in enumerate(groups)
        ),
    )


def _with_velocity(
    attributes: OptimizerAttributes, table: Mapping[str, Attribute]
) -> Mapping[str, Attribute]:
    """Velocities kept apart from the accumulators are scaled as the loss is."""
    combined = attributes.globals.get("use_combined_accum")
    if attributes.type_name != "SGD" or (combined is not None and combined.value):
        return table
    scale = attributes.globals.get("loss_scaling", _UNSCALED)
    kept = {name: value for name, value in table.items() if name != "velocity_scaling"}
    return {"velocity_scaling": scale, **kept}


def _named(table: Mapping[str, Attribute], prefix: str) -> Iterator[str]:
    for name, attribute in table.items():
        numbers = attribute.value if isinstance(attribute.value, tuple) else (attribute.value,)
        if any(isinstance(n, bool) or not isinstance(n, (int, float)) for n in numbers):
            continue
        for text, number in zip(_NAMES.get(name, (name,)), numbers, strict=False):
            full = prefix + text[0].upper() + text[1:] if prefix else text
            yield _assigned(full, number, constant=attribute.constant)


def _shared(attributes: OptimizerAttributes) -> Iterator[str]:
    second = attributes.type_name != "SGD"
    names = dict.fromkeys(_ACCUMULATORS.values(), "float32")
    for name, text in _ACCUMULATORS.items():
        given = attributes.globals.get(name)
        if given is not None and isinstance(given.value, torch.dtype):
            names[text] = str(given.value).removeprefix("torch.")
    for text, dtype in names.items():
        if second or not text.startswith("second"):
            yield f"{text}={dtype}"
    scale = attributes.globals.get("loss_scaling", _UNSCALED)
    yield _assigned("lossScaling", scale.value, constant=scale.constant)


def _assigned(name: str, number: float, *, constant: bool) -> str:
    return f"{name}={number:g}" + (" (const)" if constant else "")
