"""Branches and loops of programs that no Paddle would build: files may hold anything."""

from __future__ import annotations

from typing import Any

import pytest

from pantile.errors import CaptureError
from pantile.paddle.description import Block, Description, Operator, Variable
from pantile.paddle.inlining import inlined
from pantile.paddle.registry import translations

_COUNTERS = {name: Variable(name, shape=(1,)) for name in ("go", "turn", "last")}


def _constant(name: str, value: float, kind: int = 3, **attributes: Any) -> Operator:
    given = {"shape": [1], "value": value, "dtype": kind, **attributes}
    return Operator("fill_constant", {}, {"Out": (name,)}, given)


def _while(number: int) -> Operator:
    return Operator("while", {"Condition": ("go",)}, {"Out": ()}, {"sub_block": number})


def _types(*blocks: tuple[Operator, ...]) -> list[str]:
    described = Description(tuple(Block(_COUNTERS, operators) for operators in blocks))
    return [op.type for op in inlined(described, translations()).operators]


def test_a_loop_with_a_counter_is_written_out() -> None:
    count = Operator("increment", {"X": ("turn",)}, {"Out": ("turn",)}, {"step": 1.0})
    compare = Operator("less_than", {"X": ("turn",), "Y": ("last",)}, {"Out": ("go",)})
    main = (_constant("turn", 0), _constant("last", 3), compare, _while(1))

    found = _types(main, (Operator("tanh", {}, {}), count, compare))

    assert found == [*["fill_constant"] * 2, "less_than", *["tanh", "increment", "less_than"] * 3]


def test_a_loop_around_nothing_ends() -> None:
    with pytest.raises(CaptureError, match="20000 operators"):
        _types((_constant("go", 1, kind=0), _while(1)), ())


@pytest.mark.parametrize("number", [0, 1, 7, -1, "1", 2.0])
def test_blocks_that_hold_each_other_or_do_not_exist_are_left_alone(number: Any) -> None:
    inner = Operator("while", {"Condition": ("go",)}, {}, {"sub_block": number})

    assert _types((_constant("go", 1, kind=0),), (inner,)) == ["fill_constant"]
    assert _types((_constant("go", 0, kind=0), _while(1)), (inner,)) == ["fill_constant"]


def test_a_constant_that_is_too_large_or_wrong_is_not_computed() -> None:
    large = _constant("go", 1, shape=[10**12])
    wrong = _constant("turn", 1, kind=77)

    assert _types((large, wrong, _while(1)), ()) == ["fill_constant", "fill_constant", "while"]


def test_a_branch_without_a_condition_is_left_alone() -> None:
    branch = Operator("conditional_block", {}, {"Out": ("x",)}, {"sub_block": 1})

    assert _types((branch,), (Operator("tanh", {}, {}),)) == ["conditional_block"]
