"""Join batches along dim 0, cut them, and regroup a stream of them.

    group     batches a, b, c, d, e, two at a time        ->  ab, cd    (e is dropped or alone)
    rebatch   batches of 3, 3, 1 and 3 rows, four a time  ->  4, 4      (2 are dropped or alone)

Batches may be nested and hold types with a registered argument parser. Lists of plain values with
one entry per row (collated strings) follow their rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from pantile.errors import DataError
from pantile.program.structure import (
    Constant,
    Container,
    Structure,
    count_leaves,
    flatten,
    unflatten,
)


def group(batches: Iterable[Any], count: int, *, drop_last: bool) -> Iterator[Any]:
    """Join every `count` batches into one; a last incomplete group is dropped or kept."""
    source = iter(batches)
    while members := list(islice(source, count)):
        if len(members) < count and drop_last:
            return
        yield join(members)


def rebatch(batches: Iterable[Any], size: int, *, drop_last: bool) -> Iterator[Any]:
    """Cut a stream of batches into batches of `size` rows, whatever sizes they come in."""
    pending: list[Any] = []
    rows = 0
    for batch in batches:
        pending.append(batch)
        rows += count_rows(batch)
        while rows >= size:
            rest = rows - size
            last = pending.pop()
            cut = count_rows(last) - rest
            yield join([*pending, take_rows(last, 0, cut)])
            pending = [take_rows(last, cut, cut + rest)] if rest else []
            rows = rest
    if pending and not drop_last:
        yield join(pending)


def join(batches: Sequence[Any]) -> Any:
    """One batch with the rows of all of them."""
    if len(batches) == 1:
        return batches[0]
    parts = [flatten(batch) for batch in batches]
    structure = _join_structures([structure for _, structure in parts])
    columns = zip(*(tensors for tensors, _ in parts), strict=True)
    return unflatten(structure, [_concatenate(column) for column in columns])


def take_rows(batch: Any, start: int, stop: int) -> Any:
    """Rows `start` to `stop` of a batch."""
    rows = count_rows(batch)
    if (start, stop) == (0, rows):
        return batch
    tensors, structure = flatten(batch)
    return unflatten(_cut(structure, rows, slice(start, stop)), [t[start:stop] for t in tensors])


def count_rows(batch: Any) -> int:
    """Dim 0 of a batch: the same for all of its tensors."""
    tensors, _ = flatten(batch)
    sizes = {tensor.shape[0] if tensor.dim() else 0 for tensor in tensors}
    if len(sizes) != 1 or any(tensor.dim() == 0 for tensor in tensors):
        shapes = [list(tensor.shape) for tensor in tensors]
        raise DataError(
            f"a batch to be rebatched needs tensors with the same dim 0; it has shapes {shapes}",
            fix="let the dataset or collate_fn give every tensor a batch dimension",
        )
    return sizes.pop()


def _concatenate(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    try:
        return torch.cat(list(tensors))
    except RuntimeError as error:
        shapes = [list(tensor.shape) for tensor in tensors]
        raise DataError(
            f"micro-batches of shapes {shapes} cannot be joined along dim 0: {error}",
            fix="pad them to one shape in collate_fn",
        ) from error


def _join_structures(structures: Sequence[Structure]) -> Structure:
    first = structures[0]
    if isinstance(first, Container):
        if _is_column(first):
            return Container(first.type, first.context, _all_children(structures))
        if all(_same_node(first, other) for other in structures):
            columns = zip(*_children_of(structures), strict=True)
            children = tuple(_join_structures(column) for column in columns)
            return Container(first.type, first.context, children)
    elif isinstance(first, Constant):
        if all(isinstance(s, Constant) and s.value == first.value for s in structures):
            return first
    elif all(type(s) is type(first) and count_leaves(s) == count_leaves(first) for s in structures):
        return first
    raise DataError(
        "micro-batches of one combined batch differ in more than their rows: "
        + " and ".join(dict.fromkeys(_show(s) for s in structures)),
        fix="let collate_fn return the same structure every time, with per-row values as tensors",
    )


def _is_column(structure: Structure) -> bool:
    """Whether it is a list of plain values, as collating strings gives."""
    return (
        isinstance(structure, Container)
        and structure.type in (list, tuple)
        and len(structure.children) > 0
        and all(isinstance(child, Constant) for child in structure.children)
    )


def _same_node(first: Container, other: Structure) -> bool:
    return (
        isinstance(other, Container)
        and (other.type, other.context) == (first.type, first.context)
        and len(other.children) == len(first.children)
    )


def _children_of(structures: Sequence[Structure]) -> list[tuple[Structure, ...]]:
    return [s.children if isinstance(s, Container) else () for s in structures]


def _all_children(structures: Sequence[Structure]) -> tuple[Structure, ...]:
    return tuple(child for children in _children_of(structures) for child in children)


def _cut(structure: Structure, rows: int, part: slice) -> Structure:
    if not isinstance(structure, Container):
        return structure
    children = structure.children
    if _is_column(structure) and len(children) == rows:
        return Container(structure.type, structure.context, children[part])
    cut = tuple(_cut(child, rows, part) for child in children)
    return Container(structure.type, structure.context, cut)


def _show(structure: Structure) -> str:
    if isinstance(structure, Constant):
        return f"the value {structure.value!r}"
    if isinstance(structure, Container):
        keys = f" of {structure.context}" if isinstance(structure.context, list) else ""
        return f"a {structure.type.__name__} with {len(structure.children)} entries{keys}"
    return f"{count_leaves(structure)} tensor(s)"
