"""What a Paddle program says: variables, operators, attributes. Read from its serialised form.

    ProgramDesc bytes  ──read_program──►  Program description
       (a .pdmodel file, or program.desc.serialize_to_string() of a live program)

Paddle is not needed for it. Field numbers are those of Paddle's framework.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from pantile.errors import DamagedFile
from pantile.paddle.wire import Message, Value

DTYPES: Mapping[int, torch.dtype] = MappingProxyType(
    {
        0: torch.bool,
        1: torch.int16,
        2: torch.int32,
        3: torch.int64,
        4: torch.float16,
        5: torch.float32,
        6: torch.float64,
        20: torch.uint8,
        21: torch.int8,
        22: torch.bfloat16,
        23: torch.complex64,
        24: torch.complex128,
    }
)
LOD_TENSOR = 7
"""The kind of a variable that holds a tensor."""


@dataclass(frozen=True)
class Variable:
    """A named value of a program. A dimension of -1 is known only when it is fed."""

    name: str
    kind: int = LOD_TENSOR
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()
    persistable: bool = False
    stop_gradient: bool = False


@dataclass(frozen=True)
class Operator:
    """One operator: which variables go in and out of which slot, and its attributes."""

    type: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reads(self) -> Iterator[str]:
        """The names of all variables that go in."""
        return (name for names in self.inputs.values() for name in names)

    @property
    def writes(self) -> Iterator[str]:
        """The names of all variables that come out."""
        return (name for names in self.outputs.values() for name in names)


@dataclass(frozen=True)
class Block:
    """A list of operators and the variables they speak of."""

    variables: Mapping[str, Variable]
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class Description:
    """A program: its main block first."""

    blocks: tuple[Block, ...]

    @property
    def main(self) -> Block:
        """The block that is run."""
        return self.blocks[0]


def read_program(data: bytes, what: str = "program") -> Description:
    """Read a serialised ProgramDesc; `what` names it in errors."""
    program = Message(memoryview(data), what)
    blocks = [
        _block(program.inner(value, place)) for number, _, value, place in program if number == 1
    ]
    if not blocks:
        raise program.fault("it holds no block")
    return Description(tuple(blocks))


def _block(message: Message) -> Block:
    variables: dict[str, Variable] = {}
    operators: list[Operator] = []
    for number, _, value, place in message:
        if number == 3:
            variable = _variable(message.inner(value, place))
            variables[variable.name] = variable
        elif number == 4:
            operators.append(_operator(message.inner(value, place)))
    return Block(MappingProxyType(variables), tuple(operators))


def _variable(message: Message) -> Variable:
    name, flags = "", {3: False, 6: False}
    facts: _Facts = (LOD_TENSOR, None, ())
    for number, _, value, place in message:
        if number == 1:
            name = message.text(value, place)
        elif number == 2:
            facts = _variable_type(message.inner(value, place))
        elif number in flags:
            flags[number] = bool(message.integer(value, place))
    kind, dtype, shape = facts
    return Variable(name, kind, dtype, shape, persistable=flags[3], stop_gradient=flags[6])


_Facts = tuple[int, torch.dtype | None, tuple[int, ...]]


def _variable_type(message: Message) -> _Facts:
    kind, dtype = LOD_TENSOR, None
    shape: tuple[int, ...] = ()
    for number, _, value, place in message:
        if number == 1:
            kind = message.integer(value, place)
        elif number == 3:  # LoDTensorDesc, whose field 1 is the TensorDesc
            outer = message.inner(value, place)
            for inner_number, _, inner_value, inner_place in outer:
                if inner_number == 1:
                    dtype, shape = read_tensor_type(outer.inner(inner_value, inner_place))
    return kind, dtype, shape


def read_tensor_type(message: Message) -> tuple[torch.dtype | None, tuple[int, ...]]:
    """A TensorDesc: dtype (None for one torch does not have) and shape."""
    dtype: torch.dtype | None = None
    shape: list[int] = []
    for number, kind, value, place in message:
        if number == 1:
            dtype = DTYPES.get(message.integer(value, place))
        elif number == 2:
            shape += message.integers(kind, value, place)
    return dtype, tuple(shape)


def _operator(message: Message) -> Operator:
    kind = ""
    slots: dict[int, dict[str, tuple[str, ...]]] = {1: {}, 2: {}}
    attributes: dict[str, Any] = {}
    for number, _, value, place in message:
        if number == 3:
            kind = message.text(value, place)
        elif number in slots:
            slot, names = _slot(message.inner(value, place))
            slots[number][slot] = names
        elif number == 4:
            name, attribute = _attribute(message.inner(value, place))
            attributes[name] = attribute
    if not kind:
        raise message.fault("an operator has no type")
    return Operator(kind, slots[1], slots[2], attributes)


def _slot(message: Message) -> tuple[str, tuple[str, ...]]:
    slot, names = "", []
    for number, _, value, place in message:
        if number == 1:
            slot = message.text(value, place)
        elif number == 2:
            names.append(message.text(value, place))
    return slot, tuple(names)


_ATTRIBUTE_FIELDS: Mapping[int, tuple[int, str, bool]] = {
    # type of the attribute: (field that holds it, how it is read, is it a list)
    0: (3, "integer", False),
    1: (4, "float", False),
    2: (5, "text", False),
    3: (6, "integer", True),
    4: (7, "float", True),
    5: (8, "text", True),
    6: (10, "boolean", False),
    7: (11, "boolean", True),
    8: (12, "integer", False),
    9: (13, "integer", False),
    10: (14, "integer", True),
    11: (15, "integer", True),
    12: (16, "double", True),
    13: (17, "text", False),
    14: (18, "text", True),
    15: (19, "double", False),
    16: (20, "scalar", False),
    17: (21, "scalar", True),
}
_EMPTY: Mapping[str, Any] = {
    "integer": 0,
    "float": 0.0,
    "double": 0.0,
    "text": "",
    "boolean": False,
    "scalar": 0,
}


def _attribute(message: Message) -> tuple[str, Any]:
    name, kind = "", -1
    fields: list[tuple[int, int, Value, int]] = list(message)
    for number, _, value, place in fields:
        if number == 1:
            name = message.text(value, place)
        elif number == 2:
            kind = message.integer(value, place)
    if kind not in _ATTRIBUTE_FIELDS:
        raise message.fault(f"attribute {name!r} is of type {kind}, which does not exist")
    wanted, reading, is_list = _ATTRIBUTE_FIELDS[kind]
    found: list[Any] = []
    for number, wire, value, place in fields:
        if number == wanted:
            found += _values(message, reading, wire, value, place)
    if is_list:
        return name, found
    return name, found[-1] if found else _EMPTY[reading]


def _values(message: Message, reading: str, wire: int, value: Value, place: int) -> list[Any]:
    if reading == "text":
        return [message.text(value, place)]
    if reading == "scalar":
        return [_scalar(message.inner(value, place))]
    if reading in ("float", "double"):
        return message.numbers(wire, value, place, double=reading == "double")
    found: list[Any] = message.integers(wire, value, place)
    return [bool(number) for number in found] if reading == "boolean" else found


def _scalar(message: Message) -> bool | int | float:
    kind, found = 2, {2: 0, 3: 0, 4: 0.0}
    for number, wire, value, place in message:
        if number == 1:
            kind = message.integer(value, place)
        elif number in (2, 3):
            found[number] = message.integer(value, place)
        elif number == 4:
            found[4] = message.numbers(wire, value, place, double=True)[-1] if value else 0.0
    if kind not in (1, 2, 3):
        raise message.fault(f"a scalar is of kind {kind}, which cannot be computed with here")
    return {1: bool(found[2]), 2: found[3], 3: found[4]}[kind]


def damaged(what: str, why: str) -> DamagedFile:
    """A file that was read but says something impossible."""
    return DamagedFile(f"{what}: {why}", fix="save the model again; the file was cut or altered")
