"""Models that Paddle 3 saves: a program as JSON, translated to the older form.

    {"#": "1.pool2d", "A": [attributes], "I": [{"%": 15}, {"%": 21}], "O": [{"%": 22, …}]}

`%` numbers values; a dialect number stands before the dot of a name (0 builtin, 1 operators); "p"
is a parameter. Lists of numbers that older programs had as attributes are results of constant
operators here: they are followed while reading, so that one table of translations serves both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from pantile.errors import DamagedFile, UnknownFormat
from pantile.paddle.description import (
    DTYPES,
    LOD_TENSOR,
    Block,
    Description,
    Operator,
    Variable,
    damaged,
)
from pantile.paddle.pir_names import RULES, Rule

_NEWEST = 4
_DTYPE_NUMBERS = {str(dtype).removeprefix("torch."): number for number, dtype in DTYPES.items()}
_ELEMENTS = {
    "t_bool": "bool",
    "t_i8": "int8",
    "t_ui8": "uint8",
    "t_i16": "int16",
    "t_i32": "int32",
    "t_i64": "int64",
    "t_f16": "float16",
    "t_bf16": "bfloat16",
    "t_f32": "float32",
    "t_f64": "float64",
}
_MODES = {"downscale_in_infer": "downgrade_in_infer"}


def read_pir(data: bytes, what: str = "program") -> Description:
    """Read a program in the form of Paddle 3."""
    try:
        tree = json.loads(data)
        head = tree["base_code"]
        if head["magic"] != "pir":
            raise UnknownFormat(f"{what} is JSON, but no Paddle program", fix="name a saved model")
        if int(head["version"]) > _NEWEST:
            raise UnknownFormat(
                f"{what} is of version {head['version']} of the format; up to {_NEWEST} is known",
                fix="save the model with an older release of Paddle, or as .pdmodel",
            )
        (region,) = tree["program"]["regions"]
        (block,) = region["blocks"]
        return Description((_Reader(what).block(block),))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise damaged(what, f"it is no program of Paddle 3 ({type(error).__name__})") from error


class _Reader:
    """Follows values by their numbers."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._variables: dict[str, Variable] = {}
        self._names: dict[int, str] = {}
        self._lists: dict[int, tuple[str, ...]] = {}
        self._constants: dict[int, Any] = {}
        self._operators: list[Operator] = []
        self._feeds = 0

    def block(self, block: Mapping[str, Any]) -> Block:
        for op in block["ops"]:
            kind = str(op["#"])
            if kind == "p":
                self._parameter(op)
            elif kind.startswith("0."):
                self._builtin(kind.removeprefix("0."), op)
            else:
                self._operator(kind.partition(".")[2], op)
        return Block(MappingProxyType(self._variables), tuple(self._operators))

    # Values

    def _result(self, value: Mapping[str, Any], name: str | None = None, **facts: bool) -> str:
        number = int(value["%"])
        name = f"%{number}" if name is None else name
        dtype: torch.dtype | None = None
        shape: tuple[int, ...] = ()
        kind = value["TT"]
        if str(kind["#"]).endswith("t_dtensor"):
            element = str(kind["D"][0]["#"]).partition(".")[2]
            dtype = DTYPES[_DTYPE_NUMBERS[_ELEMENTS[element]]]
            shape = tuple(int(size) for size in kind["D"][1])
        self._names[number] = name
        self._variables[name] = Variable(name, LOD_TENSOR, dtype, shape, **facts)
        return name

    def _operand(self, number: int) -> tuple[str, ...]:
        if number in self._lists:
            return self._lists[number]
        return (self._names[number],) if number else ()

    def _parameter(self, op: Mapping[str, Any]) -> None:
        # The first mark says whether the file of parameters holds it: scratch memory of an
        # operator, such as the dropout state of an LSTM, is a parameter too, and is not saved.
        is_stored = bool(op["OA"][0]) if op.get("OA") else True
        self._result(op["O"], str(op["A"][3]), persistable=is_stored)

    def _builtin(self, kind: str, op: Mapping[str, Any]) -> None:
        numbers = [int(value["%"]) for value in op["I"]]
        if kind == "combine":
            names = [name for number in numbers for name in self._operand(number)]
            self._lists[int(op["O"][0]["%"])] = tuple(names)
        elif kind == "split":
            for value, name in zip(op["O"], self._operand(numbers[0]), strict=True):
                self._result(value, name)
        elif kind == "slice":
            place = int(_attributes(op)["index"])
            self._result(op["O"][0], self._operand(numbers[0])[place])
        else:
            raise self._unknown(f"builtin.{kind}")

    # Operators

    def _operator(self, kind: str, op: Mapping[str, Any]) -> None:
        attributes = _attributes(op)
        if kind == "data":
            name = self._result(op["O"][0], str(attributes["name"]))
            ends = {"col": self._feeds}
            self._feeds += 1
            self._operators.append(Operator("feed", {"X": ("feed",)}, {"Out": (name,)}, ends))
        elif kind == "fetch":
            (name,) = self._operand(int(op["I"][0]["%"]))
            column = {"col": int(attributes["col"])}
            self._operators.append(Operator("fetch", {"X": (name,)}, {"Out": ("fetch",)}, column))
        elif kind == "full_int_array":
            self._constant(op, attributes)
        else:
            if kind == "full":
                self._constants[int(op["O"][0]["%"])] = attributes["value"]
            rule = RULES.get(kind) or Rule(kind.removesuffix("_"))
            self._translated(rule, kind, op, attributes)

    def _constant(self, op: Mapping[str, Any], attributes: dict[str, Any]) -> None:
        """Numbers: known while reading, and a tensor for whom that is not enough."""
        values = list(attributes["value"])
        self._constants[int(op["O"][0]["%"])] = values
        name = self._result(op["O"][0])
        dtype = _DTYPE_NUMBERS[str(attributes["dtype"])]
        made = {"values": values, "shape": [len(values)], "dtype": dtype}
        self._operators.append(Operator("assign_value", {}, {"Out": (name,)}, made))

    def _translated(
        self, rule: Rule, kind: str, op: Mapping[str, Any], attributes: dict[str, Any]
    ) -> None:
        known = {rule.attributes.get(key, key): value for key, value in attributes.items()}
        inputs: dict[str, tuple[str, ...]] = {}
        for slot, value in zip(rule.inputs, op["I"], strict=False):
            self._bind(slot, int(value["%"]), known, inputs)
        if kind in ("mean", "sum", "max", "min", "prod"):
            known["reduce_all"] = not known.get("dim")
        _old_values(rule, known)
        outputs = {
            slot: self._slot_names(value)
            for slot, value in zip(rule.outputs, op["O"], strict=False)
        }
        self._operators.append(Operator(rule.name, inputs, outputs, known))

    def _bind(
        self,
        slot: str,
        number: int,
        known: dict[str, Any],
        inputs: dict[str, tuple[str, ...]],
    ) -> None:
        """Give an operand to its slot, or to its attribute if it is a constant."""
        if not slot.startswith("="):
            if number:
                inputs[slot] = self._operand(number)
            return
        attribute, _, other = slot[1:].partition("|")
        if number in self._constants:
            known[attribute] = self._constants[number]
        elif number and other:
            inputs[other] = self._operand(number)
        elif number:
            raise self._unknown(f"a computed {attribute}")

    def _slot_names(self, value: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of a result; a vector of tensors has several."""
        if not str(value["TT"]["#"]).endswith("t_vec"):
            return (self._result(value),)
        number = int(value["%"])
        names = tuple(f"%{number}.{place}" for place, _ in enumerate(value["TT"]["D"]))
        self._lists[number] = names
        return names

    def _unknown(self, what: str) -> DamagedFile | UnknownFormat:
        return UnknownFormat(
            f"{self._what} uses {what}, which has no counterpart in the older form",
            fix="save the model as .pdmodel: with FLAGS_enable_pir_api=0 in the environment",
        )


def _attributes(op: Mapping[str, Any]) -> dict[str, Any]:
    return {str(entry["N"]): _value(entry["AT"]) for entry in op["A"]}


def _value(attribute: Mapping[str, Any]) -> Any:
    data = attribute.get("D")
    if str(attribute["#"]).endswith("a_array"):
        return [_value(item) for item in data or ()]
    return data


def _old_values(rule: Rule, known: dict[str, Any]) -> None:
    """Types are numbers in the older form, and some words are others."""
    for key in ("dtype", "out_dtype"):
        if isinstance(known.get(key), str):
            known[key] = _DTYPE_NUMBERS.get(known[key], -1)
    if rule.name == "reduce_sum":
        known.pop("dtype", None)
    if rule.name == "dropout":
        mode = known.get("dropout_implementation")
        known["dropout_implementation"] = _MODES.get(str(mode), mode)
