"""Options of a strategy that change the update of a program.

    use_no_bias_optimizer   Adam, AdamW, Lamb without the corrections by powers of beta
    weight_decay_mode       "decay": beside the step; "l2_regularization": part of the gradient
    max_weight_norm         Lamb takes no larger norm of a weight
    accl1_type, accl2_type  "FLOAT16": their first and second moments are rounded to half

They are written into the operators as attributes, which `operators/updates.py` reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pantile.paddle.description import Operator
from pantile.paddle.parts import Parts

_MOMENTS = frozenset({"adam", "adamw", "lamb"})


@dataclass(frozen=True)
class UpdateModes:
    """What the options say; the defaults leave a program as it is."""

    without_bias: bool = False
    decay: str = ""
    largest_norm: float = 65504.0
    half_moments: tuple[bool, bool] = (False, False)


def with_modes(parts: Parts, modes: UpdateModes) -> Parts:
    """The parts of a program with its update as the options want it."""
    if modes == UpdateModes() or not parts.update:
        return parts
    update: Sequence[Operator] = parts.update
    if modes.decay == "decay":
        update = _beside_the_step(update)
    return replace(parts, update=tuple(_marked(op, modes) for op in update))


def _marked(op: Operator, modes: UpdateModes) -> Operator:
    if op.type not in _MOMENTS:
        return op
    marks = {
        "without_bias": modes.without_bias,
        "decays_gradient": modes.decay == "l2_regularization",
        "largest_norm": modes.largest_norm,
        "half_moment1": modes.half_moments[0],
        "half_moment2": modes.half_moments[1],
    }
    return replace(op, attributes={**op.attributes, **marks})


def _beside_the_step(update: Sequence[Operator]) -> list[Operator]:
    """Adam with L2 decay as AdamW: `g + c w` goes, and the step itself decays `w` by `c`."""
    made = {name: op for op in update for name in op.writes}
    kept, gone = [], set()
    for op in update:
        total = made.get(op.inputs["Grad"][0]) if op.type == "adam" else None
        scaled = None if total is None else _decay_of(op.inputs["Param"][0], total, made)
        if total is not None and scaled is not None:
            gone |= {id(total), id(scaled)}
            (gradient,) = {*total.reads} - {*scaled.writes}
            op = _as_adamw(op, gradient, float(scaled.attributes.get("scale", 1.0)))
        kept.append(op)
    return [op for op in kept if id(op) not in gone]


def _decay_of(weight: str, total: Operator, made: dict[str, Operator]) -> Operator | None:
    """The operator that makes `c w` of a sum `g + c w`."""
    if total.type != "sum":
        return None
    for name in total.reads:
        op = made.get(name)
        if op is not None and op.type == "scale" and op.inputs["X"] == (weight,):
            return op
    return None


def _as_adamw(op: Operator, gradient: str, coefficient: float) -> Operator:
    marks = {"with_decay": True, "coeff": coefficient, "lr_ratio": 1.0}
    inputs = {**op.inputs, "Grad": (gradient,)}
    return Operator("adamw", inputs, op.outputs, {**op.attributes, **marks})
