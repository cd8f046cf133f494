"""One operator as its translation sees it: tensors by slot, attributes by type, results by slot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from pantile.errors import OperandError
from pantile.paddle.description import DTYPES, Operator, Variable

Tensor = torch.Tensor
Translation = Callable[["Call"], None]
Table = Mapping[str, Translation]


class Call:
    """An operator of a program, the values computed so far, and the declared variables."""

    def __init__(
        self,
        operator: Operator,
        values: dict[str, Tensor],
        variables: Mapping[str, Variable],
    ) -> None:
        self.operator = operator
        self._values = values
        self._variables = variables

    @property
    def type(self) -> str:
        """The name of the operator."""
        return self.operator.type

    # Tensors

    def has(self, slot: str) -> bool:
        """Is there a value in this slot? Optional inputs may be absent, or named and never made."""
        names = self.operator.inputs.get(slot, ())
        return bool(names) and names[0] in self._values

    def tensors(self, slot: str = "X") -> list[Tensor]:
        """All tensors of a slot."""
        try:
            return [self._values[name] for name in self.operator.inputs.get(slot, ())]
        except KeyError as error:
            raise self._missing(str(error.args[0])) from None

    def _missing(self, name: str) -> OperandError:
        declared = self._variables.get(name)
        shape = () if declared is None else declared.shape
        return OperandError(
            f"operator {self.type!r} reads {name!r}, which was neither fed nor computed nor found "
            "among the parameters",
            fix="feed it, or run the startup program first"
            if all(size >= 0 for size in shape)
            else f"feed it. Please check tensor shape setting: it is declared as {list(shape)}",
        )

    def tensor(self, slot: str = "X") -> Tensor:
        """The tensor of a slot."""
        found = self.tensors(slot)
        if not found:
            raise OperandError(
                f"operator {self.type!r} has nothing in its input slot {slot!r}",
                fix="check how the program was built",
            )
        return found[0]

    def optional(self, slot: str) -> Tensor | None:
        """The tensor of a slot, or None."""
        return self.tensor(slot) if self.has(slot) else None

    def put(self, value: Tensor, slot: str = "Out") -> None:
        """Set the result of a slot, if the program wants it."""
        self.put_all([value], slot)

    def put_all(self, values: Iterable[Tensor], slot: str = "Out") -> None:
        """Set the results of a slot that holds several."""
        for name, value in zip(self.operator.outputs.get(slot, ()), values, strict=False):
            self._values[name] = self._as_declared(name, value)

    def _as_declared(self, name: str, value: Tensor) -> Tensor:
        """A single number has shape [] or [1], as the release that built the program had it."""
        declared = self._variables.get(name)
        if declared is not None and value.numel() == 1 and declared.shape in ((), (1,)):
            if value.shape == declared.shape or declared.dtype is None:
                return value
            return value.reshape(declared.shape)
        return value

    # Attributes

    def _attribute(self, name: str, kinds: Any, default: Any) -> Any:
        value = self.operator.attributes.get(name, default)
        if value is None or not isinstance(value, kinds):
            found = "absent" if value is None else f"{value!r}"
            raise OperandError(
                f"operator {self.type!r}: attribute {name!r} is {found}",
                fix="check how the program was built, or which release of Paddle saved it",
            )
        return value

    def flag(self, name: str, default: bool | None = False) -> bool:
        """A true or false attribute."""
        return bool(self._attribute(name, (bool, int), default))

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number."""
        return int(self._attribute(name, (int, float), default))

    def number(self, name: str, default: float | None = None) -> float:
        """A number."""
        return float(self._attribute(name, (int, float), default))

    def text(self, name: str, default: str | None = None) -> str:
        """A text."""
        return str(self._attribute(name, str, default))

    def integers(self, name: str, default: Iterable[int] | None = None) -> list[int]:
        """Whole numbers; a single one is a list of one."""
        value = self.operator.attributes.get(name, default)
        value = [value] if isinstance(value, int) else value
        if value is None or isinstance(value, (str, float)):
            self._attribute(name, list, None if default is None else list(default))
        return [int(number) for number in value]

    def numbers(self, name: str, default: Iterable[float] | None = None) -> list[float]:
        """Numbers; a single one is a list of one."""
        value = self.operator.attributes.get(name, default)
        value = [value] if isinstance(value, (int, float)) else value
        if value is None or isinstance(value, str):
            self._attribute(name, list, None if default is None else list(default))
        return [float(number) for number in value]

    def dtype(self, name: str, default: torch.dtype | None = None) -> torch.dtype:
        """A type, by Paddle's number; -1 or none is the default."""
        number = self.operator.attributes.get(name, -1)
        found = DTYPES.get(int(number)) if isinstance(number, (int, float)) else None
        if found is None and default is not None and number in (-1, None):
            return default
        if found is None:
            raise OperandError(
                f"operator {self.type!r}: attribute {name!r} is {number!r}, which is no type that "
                "torch has",
                fix="use one of bool, int8 … int64, uint8, float16 … float64, bfloat16",
            )
        return found

    # Attributes that may come as tensors

    def known_integers(
        self, slots: Iterable[str], attribute: str, default: Iterable[int] | None = None
    ) -> list[int]:
        """Numbers that shape the result: constant tensors of the program, or an attribute."""
        for slot in slots:
            if self.has(slot):
                return [int(n) for tensor in self.tensors(slot) for n in _items(tensor)]
        return self.integers(attribute, default)


def _items(tensor: Tensor) -> list[Tensor]:
    return list(tensor.reshape(-1).unbind())


def one_tensor(function: Callable[[Tensor], Tensor]) -> Translation:
    """The translation of an operator that maps `X` to `Out` and has no attributes."""

    def translate(call: Call) -> None:
        call.put(function(call.tensor()))

    return translate


def with_attributes(function: Callable[[Call, Tensor], Tensor]) -> Translation:
    """The translation of an operator that maps `X` to `Out` and reads attributes."""

    def translate(call: Call) -> None:
        call.put(function(call, call.tensor()))

    return translate
