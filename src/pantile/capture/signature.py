"""What a model was compiled for: names, types, shapes and constants of its arguments.

A call is bound to forward's own parameters (keywords become positions, defaults are filled in), so
that two calls that mean the same look the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from pantile.errors import ArgumentError, Error, InputMismatch
from pantile.program.spec import TensorSpec
from pantile.program.structure import (
    Constant,
    Container,
    Custom,
    Structure,
    flatten,
    leaf_names,
)

_AGAIN = "create a new wrapper or call destroy() on this one, and the model is compiled again"


@dataclass(frozen=True, eq=False)
class Bound:
    """One call, bound to the parameters of forward and taken apart.

    `positional` and `keywords` hold the arguments by name; `tensors` are all tensors in them, and
    `names` says where each was found. `places` maps the tensors of `structure` to `tensors`: a
    tensor that is passed twice is there once, if the binder merges.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    positional: Mapping[str, Any]
    keywords: Mapping[str, Any]
    structure: Structure
    tensors: tuple[torch.Tensor, ...]
    names: tuple[str, ...]
    places: tuple[int, ...]

    @property
    def values(self) -> Mapping[str, Any]:
        """All arguments by name."""
        return {**self.positional, **self.keywords}

    def outline(self) -> Bound:
        """The same call without its data: tensors on the meta device, in `values` only."""
        positional, keywords = pytree.tree_map_only(
            torch.Tensor, _without_data, (dict(self.positional), dict(self.keywords))
        )
        return Bound((), {}, positional, keywords, self.structure, (), self.names, self.places)


class Binder:
    """Binds calls to the parameters of one forward.

    `merge` makes a tensor that is passed twice one tensor, as it is for forward in eager mode: a
    write through one argument is then seen through the other.
    """

    def __init__(self, forward: Callable[..., Any], *, merge: bool = True) -> None:
        self._signature = inspect.signature(forward)
        self._parameters = list(self._signature.parameters.values())
        self._merge = merge

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
        """Normalise a call; refuse one that forward could not take."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise self._refused(error, args, kwargs) from None
        bound.apply_defaults()
        return self._bound(bound)

    def align(self, was: Bound, now: Bound) -> Bound:
        """The call `now` with its dicts in the key order of an earlier one."""
        call = self._signature.bind(*now.args, **now.kwargs)
        before = dict(was.values)
        for parameter in self._parameters:
            name, value = parameter.name, call.arguments.get(parameter.name)
            if parameter.kind is parameter.VAR_KEYWORD and value:
                call.arguments[name] = aligned({k: before[k] for k in was.keywords}, value)
            elif parameter.kind is parameter.VAR_POSITIONAL and value:
                pairs = enumerate(value)
                items = (aligned(before.get(f"*{name}[{i}]"), item) for i, item in pairs)
                call.arguments[name] = tuple(items)
            elif name in call.arguments:
                call.arguments[name] = aligned(before.get(name), value)
        return self._bound(call)

    def order(self, positional: int, keywords: Sequence[str]) -> tuple[int | torch.Tensor, ...]:
        """For a call with tensors only: where each tensor of `Bound.tensors` is found.

        An index counts positional arguments, then keywords; a tensor is a default of forward.
        """
        marks = [_Mark(i) for i in range(positional + len(keywords))]
        named = dict(zip(keywords, marks[positional:], strict=True))
        bound = self._signature.bind(*marks[:positional], **named)
        bound.apply_defaults()
        found = pytree.tree_leaves((bound.args, bound.kwargs))
        leaves = [leaf for leaf in found if isinstance(leaf, (_Mark, torch.Tensor))]
        return tuple(leaf.index if isinstance(leaf, _Mark) else leaf for leaf in leaves)

    def _bound(self, bound: inspect.BoundArguments) -> Bound:
        positional, keywords = self._named(bound)
        found, structure = flatten((bound.args, bound.kwargs))
        values = [*positional.items(), *keywords.items()]
        found_names = [n for name, value in values for n in leaf_names(flatten(value)[1], name)]
        tensors: list[torch.Tensor] = []
        names: list[str] = []
        places: list[int] = []
        index: dict[int, int] = {}
        for name, tensor in zip(found_names, found, strict=True):
            key = id(tensor) if self._merge else len(places)
            if key not in index:
                index[key] = len(tensors)
                tensors.append(tensor)
                names.append(name)
            places.append(index[key])
        return Bound(
            bound.args,
            bound.kwargs,
            positional,
            keywords,
            structure,
            tuple(tensors),
            tuple(names),
            tuple(places),
        )

    def _named(self, bound: inspect.BoundArguments) -> tuple[dict[str, Any], dict[str, Any]]:
        positional: dict[str, Any] = {}
        keywords: dict[str, Any] = {}
        for parameter in self._parameters:
            if parameter.name not in bound.arguments:
                continue
            value = bound.arguments[parameter.name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                positional.update({f"*{parameter.name}[{i}]": v for i, v in enumerate(value)})
            elif parameter.kind is parameter.VAR_KEYWORD:
                keywords.update(value)
            elif parameter.kind is parameter.KEYWORD_ONLY:
                keywords[parameter.name] = value
            else:
                positional[parameter.name] = value
        return positional, keywords

    def _refused(self, error: TypeError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Error:
        for parameter in self._parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            missing = parameter.default is parameter.empty and parameter.name not in kwargs
            position = self._parameters.index(parameter)
            if missing and position >= len(args):
                return InputMismatch(
                    f"Mandatory parameter {parameter.name} missing",
                    fix=f"forward takes {self._signature}: pass {parameter.name}",
                )
        return ArgumentError(
            f"the arguments do not fit forward{self._signature}: {error}",
            fix=f"call it as forward{self._signature} says",
        )


@dataclass(frozen=True, eq=False)
class Signature:
    """The structure of a call and the specs of its tensors."""

    structure: Structure
    places: tuple[int, ...]
    specs: tuple[TensorSpec, ...]

    @staticmethod
    def of(bound: Bound) -> Signature:
        """The signature of a call."""
        specs = tuple(TensorSpec.of(t) for t in bound.tensors)
        return Signature(bound.structure, bound.places, specs)

    def same_as(self, other: Signature) -> bool:
        """Would one program serve both calls?"""
        return (
            self.specs == other.specs
            and self.places == other.places
            and same_structure(self.structure, other.structure)
        )


def trailing_defaults(forward: Callable[..., Any]) -> tuple[Any, ...]:
    """The default of each parameter that can be passed by position; none if their number varies."""
    parameters = list(inspect.signature(forward).parameters.values())
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return ()
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.default for p in parameters if p.kind in by_position)


def without(defaults: Sequence[Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments without those at the end that are the defaults.

    A decorator of forward may tell an argument that was left out from one that was passed.
    """
    count = len(args)
    while 0 < count <= len(defaults) and args[count - 1] is defaults[count - 1]:
        count -= 1
    return args[:count]


class _Mark:
    """Stands for a tensor while a call is bound."""

    def __init__(self, index: int) -> None:
        self.index = index


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def same_structure(a: Structure, b: Structure) -> bool:
    """Structures are the same if containers, keys and constants are."""
    match a, b:
        case Constant(x), Constant(y):
            return same_value(x, y)
        case Container(kind, context, children), Container(kind2, context2, children2):
            return (
                kind is kind2
                and _same_keys(context, context2)
                and len(children) == len(children2)
                and all(map(same_structure, children, children2))
            )
        case Custom(kind, _, count), Custom(kind2, _, count2):
            return kind is kind2 and count == count2
    return type(a) is type(b)


def _same_keys(a: Any, b: Any) -> bool:
    return a is b or bool(a == b)


def same_value(a: Any, b: Any) -> bool:
    """Equality of constants that never raises and never confuses 1, 1.0 and True."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    try:
        return bool(a == b)
    except (ValueError, TypeError, RuntimeError):
        return False


def aligned(was: Any, now: Any) -> Any:
    """`now` with the keys of its dicts in the order of `was`, where they have the same keys."""
    if isinstance(was, dict) and isinstance(now, dict) and was.keys() == now.keys():
        return {key: aligned(was[key], now[key]) for key in was}
    if type(was) is type(now) and type(was) in (tuple, list) and len(was) == len(now):
        return type(was)(aligned(a, b) for a, b in zip(was, now, strict=True))
    return now


def explain_mismatch(was: Bound, now: Bound) -> InputMismatch:
    """The first difference between two calls, in PopTorch's words."""
    if len(was.positional) != len(now.positional):
        return _mismatch(
            f"Number of positional arguments mismatch: expected {len(was.positional)} "
            f"arguments but got {len(now.positional)}"
        )
    for name, value in was.positional.items():
        difference = _difference(name, value, now.positional[name])
        if difference:
            return _mismatch(difference)
    keywords = _difference("kwargs", dict(was.keywords), dict(now.keywords))
    return _mismatch(keywords or "the arguments differ")


def _difference(name: str, was: Any, now: Any) -> str:
    if isinstance(was, torch.Tensor) and isinstance(now, torch.Tensor):
        if was.dtype is not now.dtype:
            return f"Data type mismatch for {name}: expected {was.dtype} but got {now.dtype}"
        if was.shape != now.shape:
            return f"Shape mismatch for {name}: expected {was.shape} but got {now.shape}"
        return ""
    if type(was) is not type(now):
        return f"Type mismatch for {name}: expected {type(was)} but got {type(now)}"
    if isinstance(was, tuple | list) and (isinstance(was, tuple) or flatten(was)[0]):
        if len(was) != len(now):
            return f"Length mismatch for {name}: expected {len(was)} elements but got {len(now)}"
        pairs = enumerate(zip(was, now, strict=True))
        return next((d for i, (a, b) in pairs if (d := _difference(f"{name}[{i}]", a, b))), "")
    if isinstance(was, dict):
        keys = _keys(name, was, now)
        return keys or next(
            (d for key in was if (d := _difference(_item(name, key), was[key], now[key]))), ""
        )
    if not same_value(was, now):
        return f"Value mismatch for {name}: expected {was} but got {now}"
    return ""


def _item(name: str, key: Any) -> str:
    return str(key) if name == "kwargs" else f"{name}[{key}]"


def _keys(name: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    extra, missing = [k for k in now if k not in was], [k for k in was if k not in now]
    parts = []
    if extra:
        parts.append(f"Unexpected arguments: {', '.join(map(str, extra))}")
    if missing:
        parts.append(f"Missing arguments: {', '.join(map(str, missing))}")
    return f"Keys mismatch for {name}: {'. '.join(parts)}" if parts else ""


def _mismatch(message: str) -> InputMismatch:
    return InputMismatch(f"{message}. Please {_AGAIN}.", fix=_AGAIN)
