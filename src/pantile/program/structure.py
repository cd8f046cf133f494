"""Take nested arguments apart into tensors, and put tensors back into the same shape.

    {"x": t0, "meta": (t1, 3)}   --flatten-->   [t0, t1]  +  Structure
    [u0, u1]  +  Structure       --unflatten->  {"x": u0, "meta": (u1, 3)}

Tuples, lists, dicts, named tuples, dataclass-like outputs known to torch's pytree, and types with
a registered `ICustomArgParser` are containers; so is a dict of a class of the user's own that holds
tensors. Everything else that is not a tensor is a constant and is kept as it is.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from pantile.errors import Error


class ICustomArgParser(ABC):
    """How to take a user's own type apart, and how to build it again."""

    @abstractmethod
    def yieldTensors(self, struct: Any) -> Iterable[torch.Tensor]:
        """Yield every tensor of `struct`, always in the same order."""

    @abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]) -> Any:
        """Build a value like `original_structure` from the tensors of the iterator."""


@dataclass(frozen=True)
class Leaf:
    """The place of one tensor."""


@dataclass(frozen=True)
class Constant:
    """A value that is not a tensor; it is part of the structure."""

    value: Any


@dataclass(frozen=True)
class Container:
    """A container of torch's pytree: its kind and its children.

    The context of a dict of the user's own class is such a dict with None for every value.
    """

    type: type
    context: Any
    children: tuple[Structure, ...]


@dataclass(frozen=True)
class Custom:
    """A value of a registered type: the value it was seen with, and its number of tensors."""

    type: type
    original: Any
    count: int

    def __reduce__(self) -> tuple[Any, ...]:
        # A class made at run time (PyG's batches) can be sent only by its instances.
        return (_custom, (self.original, self.count))


def _custom(original: Any, count: int) -> Custom:
    return Custom(type(original), original, count)


Structure = Leaf | Constant | Container | Custom

_parsers: dict[type, ICustomArgParser] = {}


def register_parser(kind: type, parser: ICustomArgParser | None) -> None:
    """Use `parser` for values of type `kind`; None removes it."""
    if parser is None:
        _parsers.pop(kind, None)
        return
    if not isinstance(parser, ICustomArgParser):
        raise Error(
            f"parser for {kind.__name__} is a {type(parser).__name__}, not an ICustomArgParser",
            fix="subclass poptorch.ICustomArgParser and pass an instance",
        )
    _parsers[kind] = parser


def find_parser(value: object) -> ICustomArgParser | None:
    """The parser for a value: its exact type first, then any registered base."""
    exact = _parsers.get(type(value))
    if exact is not None:
        return exact
    return next((p for kind, p in _parsers.items() if isinstance(value, kind)), None)


def flatten(value: Any) -> tuple[list[torch.Tensor], Structure]:
    """The tensors of a nested value in a fixed order, and the shape they came in."""
    tensors: list[torch.Tensor] = []
    return tensors, _take_apart(value, tensors)


def _take_apart(value: Any, tensors: list[torch.Tensor]) -> Structure:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return Leaf()
    parser = find_parser(value) if _parsers else None
    if parser is not None:
        found = list(parser.yieldTensors(value))
        tensors.extend(found)
        return Custom(type(value), value, len(found))
    kind = pytree._get_node_type(value)
    node = pytree.SUPPORTED_NODES.get(kind)
    if node is None and isinstance(value, dict):
        return _take_own_dict_apart(value, tensors)
    if node is None or isinstance(value, torch.Size):  # pytree would build a plain tuple again
        return Constant(value)
    children, context = node.flatten_fn(value)
    return Container(kind, context, tuple(_take_apart(child, tensors) for child in children))


def _take_own_dict_apart(value: dict[Any, Any], tensors: list[torch.Tensor]) -> Structure:
    before = len(tensors)
    children = tuple(_take_apart(child, tensors) for child in value.values())
    if len(tensors) == before:
        return Constant(value)
    empty = copy.copy(value)
    empty.update(dict.fromkeys(value))
    return Container(type(value), empty, children)


def unflatten(structure: Structure, tensors: Sequence[Any]) -> Any:
    """Build the value again with other tensors (or anything else) in the leaves."""
    values = iter(tensors)
    built = _put_together(structure, values)
    if next(values, None) is not None:
        raise Error("more values than the structure has places for")
    return built


def _put_together(structure: Structure, values: Iterator[Any]) -> Any:
    match structure:
        case Leaf():
            return next(values)
        case Constant(value):
            return value
        case Custom(_, original, count):
            parser = find_parser(original)
            if parser is None:
                raise Error(
                    f"no parser is registered for {type(original).__name__} any more",
                    fix="register it again with poptorch.registerCustomArgParser",
                )
            mine = [next(values) for _ in range(count)]
            return parser.reconstruct(original, iter(mine))
        case Container(kind, context, children):
            built = [_put_together(child, values) for child in children]
            if kind not in pytree.SUPPORTED_NODES:
                filled = copy.copy(context)
                filled.update(zip(context, built, strict=True))
                return filled
            return pytree.SUPPORTED_NODES[kind].unflatten_fn(built, context)


def count_leaves(structure: Structure) -> int:
    """How many tensors the structure holds."""
    match structure:
        case Leaf():
            return 1
        case Custom(_, _, count):
            return count
        case Container(_, _, children):
            return sum(count_leaves(child) for child in children)
    return 0


def leaf_names(structure: Structure, name: str) -> list[str]:
    """A name for each tensor, following the path to it: `batch['x'][1]`."""
    match structure:
        case Leaf():
            return [name]
        case Custom(_, _, count):
            return [f"{name}[{i}]" for i in range(count)]
        case Container(kind, context, children):
            keys = _child_keys(kind, context, len(children))
            pairs = zip(keys, children, strict=True)
            return [leaf for key, child in pairs for leaf in leaf_names(child, f"{name}{key}")]
    return []


def _child_keys(kind: type, context: Any, count: int) -> list[str]:
    if isinstance(context, (list, dict)) and len(context) == count:
        return [f"[{key!r}]" for key in context]
    if isinstance(context, type) and hasattr(context, "_fields"):
        return [f".{field}" for field in context._fields]
    return [f"[{i}]" for i in range(count)]
