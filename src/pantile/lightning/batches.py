"""Take a batch of any type apart into tensors, and build one like it from other tensors.

    {"x": t0, "meta": Sample(t1, "a")}   →   [t0, t1]  +  an outline to compare and to build from

Beyond what the core takes apart (tuples, lists, dicts, registered types), an object whose
attributes hold tensors is: dataclasses, the batches of tokenizers and graph libraries.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pantile.program.structure import (
    Constant,
    Container,
    Structure,
    flatten,
    unflatten,
)


@dataclass(frozen=True, eq=False)
class Outline:
    """A batch without its tensors."""

    structure: Structure
    objects: tuple[tuple[Any, tuple[str, ...], Outline], ...]
    kinds: tuple[tuple[torch.Size, torch.dtype], ...]
    count: int

    def same_as(self, other: Outline) -> bool:
        """Is a program for one batch a program for the other?"""
        return (
            self.kinds == other.kinds
            and len(self.objects) == len(other.objects)
            and _same(self.structure, other.structure)
            and all(
                type(a) is type(b) and names == others and mine.same_as(theirs)
                for (a, names, mine), (b, others, theirs) in zip(
                    self.objects, other.objects, strict=True
                )
            )
        )

    def described(self) -> str:
        """Types and shapes: `float32[8, 16], int64[8]`."""
        return ", ".join(f"{d}{list(s)}" for s, d in self.kinds).replace("torch.", "")

    def build(self, tensors: Sequence[Any]) -> Any:
        """A batch of this kind."""
        return self._build(iter(tensors))

    def _build(self, tensors: Iterator[Any]) -> Any:
        mine = [next(tensors) for _ in range(self.count)]
        built = unflatten(self.structure, mine)
        if not self.objects:
            return built
        made: dict[int, Any] = {}
        for original, names, outline in self.objects:
            twin = copy.copy(original)
            vars(twin).update(zip(names, outline._build(tensors), strict=True))
            made[id(original)] = twin
        return _exchanged(built, made)


def take_apart(batch: Any) -> tuple[list[torch.Tensor], Outline]:
    """All tensors of a batch in a fixed order, and its outline."""
    tensors, structure = flatten(batch)
    count = len(tensors)
    objects = []
    for value in _constants(structure):
        names = _names_with_tensors(value)
        if names:
            found, outline = take_apart(tuple(vars(value)[name] for name in names))
            tensors = [*tensors, *found]
            objects.append((value, names, outline))
    kinds = tuple((t.shape, t.dtype) for t in tensors)
    return tensors, Outline(structure, tuple(objects), kinds, count)


def _constants(structure: Structure) -> Iterator[Any]:
    match structure:
        case Constant(value) if hasattr(value, "__dict__"):
            yield value
        case Container(_, _, children):
            for child in children:
                yield from _constants(child)


def _names_with_tensors(value: Any) -> tuple[str, ...]:
    if isinstance(value, type) or callable(value):
        return ()
    inner = vars(value).items()
    return tuple(name for name, item in inner if take_apart_count(item))


def take_apart_count(value: Any) -> int:
    """How many tensors a value holds."""
    return len(take_apart(value)[0])


def _same(a: Structure, b: Structure) -> bool:
    match a, b:
        case Constant(x), Constant(y):
            if type(x) is not type(y):
                return False
            if hasattr(x, "__dict__") and _names_with_tensors(x):
                return True
            return x is y or bool(x == y)
        case Container(kind, context, children), Container(other_kind, other_context, others):
            return (
                kind is other_kind
                and context == other_context
                and len(children) == len(others)
                and all(_same(x, y) for x, y in zip(children, others, strict=True))
            )
    return a == b


def _exchanged(value: Any, made: dict[int, Any]) -> Any:
    if id(value) in made:
        return made[id(value)]
    if isinstance(value, dict):
        return type(value)((k, _exchanged(v, made)) for k, v in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_exchanged(v, made) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_exchanged(v, made) for v in value)
    return value
