"""Options written as text: JSON, or a file with one setter on each line.

    {"Training.gradientAccumulation": 4,          deviceIterations(4)
     "outputMode": ["OutputMode.EveryN", 2]}      outputMode(poptorch.OutputMode.All)  # comment

Neither is ever executed. A line is parsed, and then only a few things are understood in it: the
options and their groups, their public setters, the enums, the strategies, tensor locations,
torch dtypes, and literals. Everything else is refused with the line in the message.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import MethodType
from typing import Any

import torch

from pantile import enums
from pantile.errors import ConfigFileError, Error, OptionError, OptionTypeError, UnknownOption
from pantile.options import strategy
from pantile.options.popart import _PopartOptions
from pantile.options.storage import OptionGroup
from pantile.options.strategy import ExecutionStrategy, Phase, Stage
from pantile.options.tensor_location import TensorLocationSettings
from pantile.options.validate import did_you_mean

Namespace = dict[str, Any]

_ENUMS: Namespace = {name: getattr(enums, name) for name in enums.__all__}
_CLASSES: Namespace = {
    "ParallelPhasedExecution": strategy.ParallelPhasedExecution,
    "Phase": Phase,
    "PipelinedExecution": strategy.PipelinedExecution,
    "SerialPhasedExecution": strategy.SerialPhasedExecution,
    "ShardedExecution": strategy.ShardedExecution,
    "Stage": Stage,
    "TensorLocationSettings": TensorLocationSettings,
}
_DTYPES: Namespace = {
    name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)
}
_NAMES: Namespace = {
    **_ENUMS,
    **_CLASSES,
    "enums": _ENUMS,
    "poptorch": {**_ENUMS, **_CLASSES, "enums": _ENUMS},
    "torch": _DTYPES,
}
# The objects whose public methods text may call.
_SETTABLE = (OptionGroup, _PopartOptions, ExecutionStrategy, Phase, Stage, TensorLocationSettings)

_ENUM_TEXT = re.compile(r"(?:poptorch\.)?(?:enums\.)?(?P<owner>[A-Za-z]\w*)\.(?P<member>\w+)")


def apply_json(options: OptionGroup, text: str) -> None:
    """Apply a JSON object of setters and their arguments; a list gives several arguments."""
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise OptionError(
            f"the options are not valid JSON: {error}",
            fix='write an object such as {"deviceIterations": 4}',
        ) from None
    if not isinstance(settings, dict):
        raise OptionTypeError(
            f"the options must be a JSON object, not {type(settings).__name__}",
            fix='write an object such as {"deviceIterations": 4}',
        )
    for accessor, value in settings.items():
        _apply_setting(options, accessor, value)


def _apply_setting(options: OptionGroup, accessor: str, value: Any) -> None:
    *groups, name = accessor.split(".")
    owner: Any = options
    for group in groups:
        owner = _public_member(owner, group)
    member = _public_member(owner, name)
    if isinstance(member, MethodType):
        arguments = value if isinstance(value, list) else [value]
        _call(member, [_from_json(argument) for argument in arguments], {})
    elif isinstance(member, _SETTABLE):
        raise OptionError(
            f"{accessor!r} is a group of options, not an option",
            fix=f'name an option in it: "{accessor}.…"',
        )
    else:
        setattr(owner, name, _from_json(value))


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if isinstance(value, dict):
        return {key: _from_json(item) for key, item in value.items()}
    match = _ENUM_TEXT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    owner, member = match["owner"], match["member"]
    if owner == "torch" and member in _DTYPES:
        return _DTYPES[member]
    return _enum_member(_ENUMS[owner], member) if owner in _ENUMS else value


def apply_file(options: OptionGroup, path: str) -> None:
    """Apply a file of setters. Every line is parsed before the first one takes effect."""
    file_name = os.path.basename(path)
    for line in [_parsed(entry) for entry in _kept_lines(path, file_name)]:
        try:
            line.apply(options)
        except Error as error:
            error.location = error.location or f"{file_name}: {line.text}"
            raise


@dataclass(frozen=True)
class _Line:
    """One line of an options file; `number` counts the lines that say something."""

    file_name: str
    number: int
    text: str
    statement: ast.stmt | None = None

    def apply(self, options: OptionGroup) -> None:
        """Call the setter, or assign the value, the line names."""
        scope = {**_NAMES, "options": options}
        match self.statement:
            case ast.Expr(value=ast.Call() as call):
                self._value(call, scope)
            case ast.Assign(targets=[ast.Attribute(value=owner, attr=name)], value=given):
                target = self._value(owner, scope)
                _public_member(target, name)
                setattr(target, name, self._value(given, scope))
            case _:
                raise self._refusal("a line is one call of a setter")

    def _value(self, node: ast.expr, scope: Namespace) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
                return -number
            case ast.List(elts=items):
                return [self._value(item, scope) for item in items]
            case ast.Tuple(elts=items):
                return tuple(self._value(item, scope) for item in items)
            case ast.Dict(keys=keys, values=values) if None not in keys:
                pairs = zip(keys, values, strict=True)
                return {self._value(k, scope): self._value(v, scope) for k, v in pairs if k}
            case ast.Name(id=name) if name in scope:
                return scope[name]
            case ast.Attribute(value=owner, attr=name):
                return self._member(self._value(owner, scope), name, node)
            case ast.Call(func=function, args=arguments, keywords=keywords):
                return self._called(function, arguments, keywords, scope)
        raise self._refusal(f"{ast.unparse(node)!r} is not understood here")

    def _member(self, owner: Any, name: str, node: ast.expr) -> Any:
        if isinstance(owner, dict) and name in owner:
            return owner[name]
        if isinstance(owner, type) and issubclass(owner, Enum):
            return _enum_member(owner, name)
        if isinstance(owner, _SETTABLE):
            return _public_member(owner, name)
        raise self._refusal(f"{ast.unparse(node)!r} is not understood here")

    def _called(
        self,
        function: ast.expr,
        arguments: list[ast.expr],
        keywords: list[ast.keyword],
        scope: Namespace,
    ) -> Any:
        target = self._value(function, scope)
        if not isinstance(target, MethodType) and target not in _CLASSES.values():
            raise self._refusal(f"{ast.unparse(function)!r} cannot be called here")
        if any(keyword.arg is None for keyword in keywords):
            raise self._refusal("'**' is not understood here")
        return _call(
            target,
            [self._value(argument, scope) for argument in arguments],
            {str(keyword.arg): self._value(keyword.value, scope) for keyword in keywords},
        )

    def _refusal(self, why: str) -> ConfigFileError:
        return ConfigFileError(
            f"line {self.number} of {self.file_name}: {why}\n> {self.text}",
            fix="write a setter with literals, enums, stages or strategies, "
            "such as outputMode(poptorch.OutputMode.All)",
        )


def _kept_lines(path: str, file_name: str) -> list[_Line]:
    try:
        with open(path, encoding="utf-8") as file:
            stripped = [line.strip() for line in file]
    except UnicodeDecodeError as error:
        raise ConfigFileError(
            f"{file_name} is not a text file: {error}", fix="save it as UTF-8 text"
        ) from None
    kept = [line for line in stripped if line and not line.startswith("#")]
    return [_Line(file_name, number, line) for number, line in enumerate(kept, start=1)]


def _parsed(line: _Line) -> _Line:
    try:
        statements = ast.parse(f"options.{line.text}").body
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise ConfigFileError(
            f"SyntaxError at line {line.number} of {line.file_name}: {reason}\n"
            f"> options.{line.text}",
            fix="write one setter on each line, such as deviceIterations(4)",
        ) from error
    statement = statements[0] if len(statements) == 1 else None
    return _Line(line.file_name, line.number, line.text, statement)


def _public_member(owner: Any, name: str) -> Any:
    is_public = not name.startswith("_") or name == "_Popart"
    # An OptionGroup raises UnknownOption itself, with the name it thinks was meant.
    if is_public and (isinstance(owner, OptionGroup) or hasattr(owner, name)):
        return getattr(owner, name)
    public = [member for member in dir(owner) if not member.startswith("_")]
    raise UnknownOption(
        f"{type(owner).__name__} has no option {name!r}",
        fix=did_you_mean(name, public) or f"use one of: {', '.join(public)}",
    )


def _enum_member(enum: type[Enum], name: str) -> Enum:
    if name not in enum.__members__:
        names = ", ".join(enum.__members__)
        raise OptionError(
            f"{enum.__name__} has no member {name!r}",
            fix=did_you_mean(name, enum.__members__) or f"use one of: {names}",
        )
    return enum[name]


def _call(function: Callable[..., Any], arguments: list[Any], keywords: Namespace) -> Any:
    signature = inspect.signature(function)
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        shown = ", ".join(signature.parameters)
        raise OptionTypeError(
            f"{function.__name__}: {error}",
            fix=f"it takes ({shown}); in JSON a list gives one value for each, "
            "so a list as the only value is written [[…]]",
        ) from None
    return function(*arguments, **keywords)
