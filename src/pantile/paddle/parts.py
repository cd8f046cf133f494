"""Divide a program by what its operators are for.

    role 0, 256     forward; 256 yields the loss          translated
    role 1, 257     backward                              derived again from forward
    role 16         learning-rate schedule                translated, part of the update
    role 2          decay, clipping, update               translated, fed with our gradients

So the update keeps Paddle's formulas, whatever an optimizer puts there, and the gradients of
several micro-batches can be averaged before it. The backward part still says two things: which
variable is the loss, and past which variables no gradient flows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pantile.errors import CaptureError, LossError, OptimizerError
from pantile.paddle.description import Block, Operator, Variable

GRADIENT = "@GRAD"
_CAST = re.compile(r"\.cast_[a-z]+\d+$")
_BACKWARD, _OPTIMIZE, _SCHEDULE, _LOSS = 1, 2, 16, 256
_OUTSIDE = frozenset({"feed", "fetch"})


@dataclass(frozen=True)
class Parts:
    """A program, divided. `flows` names the variables a gradient flows to; None: all."""

    forward: tuple[Operator, ...]
    update: tuple[Operator, ...]
    variables: Mapping[str, Variable]
    loss: str | None = None
    loss_gradient: float = 1.0
    trained: tuple[str, ...] = ()
    flows: frozenset[str] | None = None

    def reaches(self, name: str) -> bool:
        """Does a gradient flow to the variable?

        Mixed precision puts casts into a program that has its backward part already: a cast
        variable is looked up by the name of what it was cast from.
        """
        if self.flows is None or name == self.loss:
            return True
        return name in self.flows or _CAST.sub("", name) in self.flows

    def needs(self) -> tuple[str, ...]:
        """What forward and update read before anybody wrote it, in order; no gradients."""
        return tuple(
            name
            for name in _read_first((*self.forward, *self.update))
            if not name.endswith(GRADIENT)
        )

    def written(self) -> frozenset[str]:
        """All names that forward or update write."""
        return frozenset(name for op in (*self.forward, *self.update) for name in op.writes)


def divide(block: Block, *, training: bool, loss: str | None = None) -> Parts:
    """The parts of a program's main block; `loss` names the loss where the program does not."""
    operators = [op for op in block.operators if op.type not in _OUTSIDE]
    forward = tuple(op for op in operators if not _role(op) & (_BACKWARD | _OPTIMIZE | _SCHEDULE))
    if not training:
        return Parts(forward, (), block.variables)
    backward = [op for op in operators if _role(op) & _BACKWARD]
    update = tuple(op for op in operators if _role(op) & (_OPTIMIZE | _SCHEDULE))
    if not any("Param" in op.inputs for op in update):
        raise OptimizerError(
            "the program is compiled for training and holds no optimizer",
            fix="call optimizer.minimize(loss) before compiling, or set is_training=False",
        )
    update = (*_sources(update, (*forward, *backward), block.variables), *update)
    found, seed = _loss_of(forward, backward)
    gradients = [name for name in _read_first(update) if name.endswith(GRADIENT)]
    return Parts(
        forward,
        update,
        block.variables,
        loss=_checked_loss(loss or found),
        loss_gradient=seed,
        trained=tuple(name.removesuffix(GRADIENT) for name in gradients),
        flows=_flows(backward) if backward else None,
    )


def pruned(parts: Parts, fetches: Iterable[str]) -> Parts:
    """Without what no fetch, no loss, no kept variable and nobody at the terminal sees."""
    wanted = {*fetches} | ({parts.loss} if parts.loss is not None else set())
    kept: list[Operator] = []
    for op in reversed(parts.forward):
        lasting = any(
            parts.variables[name].persistable for name in op.writes if name in parts.variables
        )
        if lasting or op.type == "print" or wanted.intersection(op.writes):
            wanted.update(op.reads)
            kept.append(op)
    return replace(parts, forward=tuple(reversed(kept)))


def shared_out(parts: Parts, devices: int) -> Parts:
    """The forward operators in as many equal runs as there are devices, one stage each."""
    size = -(-len(parts.forward) // devices) if devices > 1 else len(parts.forward)
    return replace(
        parts,
        forward=tuple(
            replace(
                op,
                attributes={
                    **op.attributes,
                    "ipu_index": place // size,
                    "ipu_stage": place // size,
                },
            )
            for place, op in enumerate(parts.forward)
        ),
    )


def place_of(op: Operator) -> tuple[int, int] | None:
    """The stage of an operator and its IPU, if it was built for one."""
    index, stage = (int(op.attributes.get(n, -1)) for n in ("ipu_index", "ipu_stage"))
    if index < 0 and stage < 0:
        return None
    return (stage if stage >= 0 else index), (index if index >= 0 else stage)


def check_translated(operators: Iterable[Operator], known: Iterable[str]) -> None:
    """Refuse a program with operators nobody can translate, naming all of them at once."""
    unknown = sorted({op.type for op in operators} - set(known))
    if not unknown:
        return
    fix = (
        "replace them, or give each a torch function with "
        "pantile.paddle.register_operator(name, function)"
    )
    if any(kind.startswith(("sequence_", "lod_")) for kind in unknown):
        fix += "; sequences of different lengths (LoD) must be padded, as for the IPU"
    raise CaptureError(
        f"the program holds operators without a translation: {', '.join(unknown)}", fix=fix
    )


def _role(op: Operator) -> int:
    return int(op.attributes.get("op_role", 0)) & ~0x1000


def _loss_of(forward: Sequence[Operator], backward: Sequence[Operator]) -> tuple[str | None, float]:
    """The loss is what the backward part begins with: a constant named <loss>@GRAD."""
    for op in backward:
        if _role(op) & _LOSS and op.type == "fill_constant":
            name = next(op.writes).removesuffix(GRADIENT)
            return name, float(op.attributes.get("value", 1.0))
    marked = [op for op in forward if op.type == "identity_loss"]
    marked = marked or [op for op in forward if _role(op) & _LOSS]
    return (next(marked[-1].writes), 1.0) if marked else (None, 1.0)


def _checked_loss(loss: str | None) -> str:
    if loss is None:
        raise LossError(
            "the program does not say which variable is the loss",
            fix="mark it with paddle.incubate.identity_loss, or call optimizer.minimize(loss)",
        )
    return loss


def _flows(backward: Sequence[Operator]) -> frozenset[str]:
    names = (name for op in backward for name in op.writes)
    return frozenset(name.split(GRADIENT)[0] for name in names if GRADIENT in name)


def _sources(
    update: Sequence[Operator], before: Sequence[Operator], variables: Mapping[str, Variable]
) -> list[Operator]:
    """Earlier operators whose results the update reads: it computes them again.

    Mixed precision casts a weight once, where it is used first. The decay of that weight, which
    is part of the update, is then made to read the cast one.
    """

    def is_given(name: str) -> bool:
        return name.endswith(GRADIENT) or (name in variables and variables[name].persistable)

    wanted = {name for name in _read_first(update) if not is_given(name)}
    found: list[Operator] = []
    for op in reversed(before):
        if wanted.intersection(op.writes):
            wanted.update(name for name in op.reads if not is_given(name))
            found.append(op)
    return found[::-1]


def _read_first(operators: Iterable[Operator]) -> list[str]:
    made: set[str] = set()
    found: dict[str, None] = {}
    for op in operators:
        for name in op.reads:
            if name not in made:
                found.setdefault(name)
        made.update(op.writes)
    return list(found)
