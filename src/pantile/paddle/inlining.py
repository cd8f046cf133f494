"""Branches and loops of a program as straight operators, where that is known before it runs.

    conditional_block    both branches are computed; `select_input` or a `where` chooses
    while                written out, if its condition is made of constants: a counter and a limit

What is left as it was (a loop that waits for a value, a branch that changes weights) is refused
later, together with every other operator that has no translation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from pantile.errors import CaptureError, Error
from pantile.paddle.call import Call, Table
from pantile.paddle.description import Block, Description, Operator, Variable

MOST_OPERATORS = 20_000
"""A program that is longer when its loops are written out is refused."""

_BACKWARD = 1
_COMPARED = ("equal", "greater_equal", "greater_than", "less_equal", "less_than", "not_equal")
_COMPUTED = ("elementwise_add", "elementwise_mul", "elementwise_sub", "increment", "scale")
_DECIDED = ("logical_and", "logical_not", "logical_or")
_MADE = ("assign", "assign_value", "cast", "fill_constant")
_FOLDED = frozenset({*_COMPARED, *_COMPUTED, *_DECIDED, *_MADE})
"""What conditions and counters of loops are made of."""
_FAULTS = (RuntimeError, ValueError, TypeError, KeyError, IndexError, OverflowError)


def inlined(description: Description, table: Table) -> Block:
    """The main block with the branches and loops it can be freed of."""
    if len(description.blocks) == 1:
        return description.main
    variables = {
        name: variable
        for block in reversed(description.blocks)  # the main block has the last word
        for name, variable in block.variables.items()
    }
    made: list[Operator] = []
    for operator in _Writer(description, variables, table).block(0):
        made.append(operator)
        if len(made) > MOST_OPERATORS:
            raise _too_long()
    # What the backward part of inner blocks says about the flow of gradients is kept.
    inner = (op for block in description.blocks[1:] for op in block.operators)
    made += [op for op in inner if _role(op) & _BACKWARD]
    return Block(variables, tuple(made))


class _Writer:
    """Walks through blocks in the order they run, and knows the constants at each place."""

    def __init__(
        self, description: Description, variables: Mapping[str, Variable], table: Table
    ) -> None:
        self._blocks, self._variables, self._table = description.blocks, variables, table
        self._constants: dict[str, torch.Tensor] = {}
        self._written: set[str] = set()
        self._copies = 0

    def block(self, number: int) -> Iterator[Operator]:
        """The operators of a block."""
        for op in self._blocks[number].operators:
            inner = self._inner(op, number)
            if op.type == "conditional_block" and inner is not None and self._is_pure(inner, op):
                yield from self._branch(op, inner)
            elif op.type == "while" and inner is not None and self._condition(op) is not None:
                yield from self._loop(op, inner)
            else:
                self._fold(op)
                yield op

    def _inner(self, op: Operator, outer: int) -> int | None:
        """The block an operator runs. It comes after its own, or blocks could hold each other."""
        number = op.attributes.get("sub_block")
        known = isinstance(number, int) and outer < number < len(self._blocks)
        return number if known and not _role(op) & _BACKWARD else None

    def _loop(self, op: Operator, number: int) -> Iterator[Operator]:
        turns = 0
        while self._condition(op):
            turns += 1
            if turns > MOST_OPERATORS:
                raise _too_long()
            yield from self.block(number)

    def _is_pure(self, number: int, op: Operator) -> bool:
        """A branch that may be computed although it is not taken: it changes no weights."""
        writes = [name for inner in self._blocks[number].operators for name in inner.writes]
        kept = any(self._variables.get(name, Variable(name)).persistable for name in writes)
        scalar = bool(op.attributes.get("is_scalar_condition", False))
        return scalar and bool(op.inputs.get("Cond")) and not kept

    def _branch(self, op: Operator, number: int) -> Iterator[Operator]:
        """The branch, and where a variable had a value before, the choice between the two."""
        changed = [name for name in op.outputs.get("Out", ()) if name in self._written]
        before = {name: self._copy_of(name) for name in changed}
        for name, copy in before.items():
            yield Operator("assign", {"X": (name,)}, {"Out": (copy,)})
        taken = self._known(op.inputs.get("Cond", ()))
        yield from self.block(number)
        for name, copy in before.items():
            inputs = {"Condition": op.inputs["Cond"], "X": (name,), "Y": (copy,)}
            yield Operator("where", inputs, {"Out": (name,)})
        if taken is not True:
            self._forget(op.writes)

    def _copy_of(self, name: str) -> str:
        self._copies += 1
        return f"{name}/before/{self._copies}"

    # Constants

    def _condition(self, op: Operator) -> bool | None:
        return self._known(op.inputs.get("Condition", ()))

    def _known(self, names: Sequence[str]) -> bool | None:
        """What a condition is, if that is known here."""
        value = self._constants.get(names[0]) if names else None
        return None if value is None or value.numel() != 1 else bool(value)

    def _fold(self, op: Operator) -> None:
        """Compute what is made of constants alone; forget what is overwritten by anything else."""
        self._written.update(op.writes)
        self._forget(name for name in op.writes if name not in op.reads)
        if op.type not in _FOLDED or not self._is_small(op):
            self._forget(op.writes)
            return
        try:
            self._table[op.type](Call(op, self._constants, self._variables))
        except (Error, *_FAULTS):  # the session will say what is wrong with it
            self._forget(op.writes)

    def _is_small(self, op: Operator) -> bool:
        """Does it make one number of single numbers that are known?"""
        known = all(name in self._constants for name in op.reads)
        declared = [self._variables.get(name, Variable(name)).shape for name in op.writes]
        shape = op.attributes.get("shape", ())
        return known and all(size in ((), (1,)) for size in declared) and shape in ([], (), [1])

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._constants.pop(name, None)


def _too_long() -> CaptureError:
    return CaptureError(
        f"the program has more than {MOST_OPERATORS} operators when its loops are written out",
        fix="make fewer turns in a loop, or run it from Python",
    )


def _role(op: Operator) -> int:
    role = op.attributes.get("op_role", 0)
    return role if isinstance(role, int) else 0
