"""The value of a node at an index, as C++ statements.

    node     relu(x + bias)            statements   float v0 = x[i * 8 + j];
    index    (i, j)                                 float v1 = bias[j];
                                                    float v2 = op_relu(v0 + v1);

Views only rewrite the index. Values that have memory are loaded; the rest is computed on the spot.
A statement knows the axes it depends on, so a kernel can put it into the outermost loop possible.

Note [Halves] A number of 16 bits is computed as a float, and a name of one always is a number that
its type has: what an operator computes is rounded at once (`rounded`), as in eager. So a cast to
float32 is no operation, and rounding a second time is not written down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import fx

from pantile.lowering.kernels.index import Affine, Index, Space
from pantile.lowering.kernels.memory import Buffer, Pointer
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.types import (
    HALVES,
    computed,
    cpp,
    dtype_of,
    literal,
    read,
    shape_of,
)


@dataclass(frozen=True)
class Statement:
    """const `cpp` `name` = `text`, in which {0}, {1}, … are the sums in `sums`."""

    name: str
    cpp: str
    text: str
    needs: tuple[str, ...]
    sums: tuple[Affine, ...]
    loaded_from: Pointer | None = None
    """The pointer that is read at the first sum, if the statement does nothing else."""


@dataclass(frozen=True)
class Read:
    """A value that was loaded, or asked for."""

    node: fx.Node
    index: Index
    whole: bool = False
    """The index is known only when the kernel runs."""


class Values(Protocol):
    """What a trace must know of the program around it."""

    def is_realised(self, node: fx.Node) -> bool:
        """Has the value memory of its own?"""

    def buffer(self, node: fx.Node) -> Buffer | None:
        """Its memory; None if it has none, or not yet."""

    def rule(self, target: Any) -> Callable[[Any, fx.Node, Index], str] | None:
        """How an operator is written down where it is used."""


@dataclass(eq=False)
class Trace:
    """Statements for one kernel."""

    values: Values
    probing: bool = False
    """Only find out what is read: nothing has memory yet."""
    space: Space = field(default_factory=Space)
    statements: list[Statement] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    used: dict[str, Pointer] = field(default_factory=dict)
    given: dict[fx.Node, str] = field(default_factory=dict)
    """Values that are at hand under a name."""
    asked: list[Read] = field(default_factory=list)
    """Where the given values were asked for."""
    computed: set[fx.Node] = field(default_factory=set)
    """Values with memory that are computed here, not loaded."""
    prefix: str = "v"
    _memo: dict[Any, str] = field(default_factory=dict)
    _stated: dict[Any, str] = field(default_factory=dict)
    _exact: set[tuple[str, torch.dtype]] = field(default_factory=set)
    """Names, and the types of 16 bits that have their numbers."""
    _bits: dict[tuple[str, str], str] = field(default_factory=dict)
    """The bits of a name that was rounded, by that and the type in memory."""

    def value(self, node: fx.Node, index: Sequence[Affine]) -> str:
        """The name of a value at an index."""
        resolved = self.space.resolved(index)
        key = (node, tuple(part.key for part in resolved))
        if key not in self._memo:
            self._memo[key] = self._value(node, resolved)
        return self._memo[key]

    def _value(self, node: fx.Node, index: Index) -> str:
        if node in self.given:
            self.asked.append(Read(node, index))
            return self.given[node]
        if node.op == "placeholder" or (
            self.values.is_realised(node) and node not in self.computed
        ):
            return self.load(node, index)
        rule = self.values.rule(node.target)
        if rule is None:
            raise Refused(f"no rule for {node.target}", {node: f"no rule for {node.target}"})
        try:
            return self.rounded(rule(self, node, index), dtype_of(node))
        except Refused as refusal:
            refusal.see_at(node)
            raise

    def operand(self, value: Any, index: Sequence[Affine], dtype: torch.dtype) -> str:
        """An argument of an operator, broadcast to its index, as a type."""
        if not isinstance(value, fx.Node):
            text = literal(value, dtype)
            self._exact.add((text, dtype))
            return text
        shape = shape_of(value)
        name = self.value(value, broadcast(index, shape))
        return self.cast(name, dtype_of(value), dtype)

    def cast(self, name: str, have: torch.dtype, want: torch.dtype) -> str:
        """A value as another type."""
        if want in HALVES:
            return self.rounded(self.cast(name, have, torch.float32), want)
        if computed(have) is want:
            return name
        if want is torch.bool:
            return self.state("bool", f"{name} != 0", [name])
        if have is torch.bool:  # a cast of a comparison would not be vectorised
            text = f"{name} ? {literal(1, want)} : {literal(0, want)}"
            return self.state(cpp(want), text, [name])
        return self.state(cpp(want), f"({cpp(want)}){name}", [name])

    def rounded(self, name: str, dtype: torch.dtype) -> str:
        """A value as a type of 16 bits has it; see Note [Halves]."""
        if dtype not in HALVES or self.is_exact(name, dtype):
            return name
        kind = HALVES[dtype]
        bits = self.state("u32", f"{kind}_bits({name})", [name])
        value = self.state("float", f"{kind}_value({bits})", [bits])
        self._exact.add((value, dtype))
        self._bits[value, kind] = bits
        return value

    def is_exact(self, name: str, dtype: torch.dtype) -> bool:
        """Is a value known to be a number of a type of 16 bits?"""
        return (name, dtype) in self._exact

    def chosen(self, name: str, among: Sequence[str], dtype: torch.dtype) -> str:
        """A value that is one of others, but for its sign: it needs no rounding if they do not."""
        if dtype in HALVES and all(self.is_exact(other, dtype) for other in among):
            self._exact.add((name, dtype))
        return name

    def kept(self, value: str, kind: str) -> str:
        """What is assigned to memory of a type, for a value."""
        if kind not in HALVES.values():
            return value
        return self._bits.get((value, kind)) or f"{kind}_bits({value})"

    def state(
        self,
        cpp_type: str,
        text: str,
        needs: Sequence[str] = (),
        sums: Sequence[Affine] = (),
        loaded_from: Pointer | None = None,
    ) -> str:
        """The name of a statement: a new one, unless the same was made before."""
        key = (cpp_type, text, tuple(self.space.resolve(part).key for part in sums))
        if key not in self._stated:
            name = f"{self.prefix}{len(self.statements)}"
            statement = Statement(name, cpp_type, text, tuple(needs), tuple(sums), loaded_from)
            self.statements.append(statement)
            self._stated[key] = name
        return self._stated[key]

    def load(self, node: fx.Node, index: Sequence[Affine]) -> str:
        """Read a value from its memory."""
        self.reads.append(Read(node, tuple(index)))
        if self.probing:
            return "0"
        buffer = self._buffer(node)
        pointer, rest = self.point(buffer, buffer.address(index))
        text = read(buffer.cpp, f"{pointer.name}[{{0}}]")
        name = self.state(cpp(dtype_of(node)), text, (), [rest], pointer)
        self._exact.add((name, dtype_of(node)))
        return name

    def load_at(self, node: fx.Node, index: Sequence[Affine], places: Mapping[int, str]) -> str:
        """Read a value where computed numbers say, in some dims."""
        self.reads.append(Read(node, tuple(index), whole=True))
        if self.probing:
            return "0"
        buffer = self._buffer(node)
        fixed = [Affine() if d in places else part for d, part in enumerate(index)]
        pointer, rest = self.point(buffer, buffer.address(fixed))
        steps = "".join(f" + {place} * {buffer.strides[d]}" for d, place in places.items())
        text = read(buffer.cpp, f"{pointer.name}[{{0}}{steps}]")
        name = self.state(cpp(dtype_of(node)), text, list(places.values()), [rest])
        self._exact.add((name, dtype_of(node)))
        return name

    def point(self, buffer: Buffer, address: Affine) -> tuple[Pointer, Affine]:
        """A pointer the kernel must be given, and what is to be added to it."""
        pointer, rest = Pointer.to(buffer, address)
        self.used[pointer.name] = pointer
        return pointer, rest

    def _buffer(self, node: fx.Node) -> Buffer:
        buffer = self.values.buffer(node)
        if buffer is None:
            raise Refused(f"{node} is read before it is computed")
        return buffer


def broadcast(index: Sequence[Affine], shape: Sequence[int]) -> Index:
    """The index into an operand that is broadcast."""
    last = index[len(index) - len(shape) :] if shape else ()
    return tuple(Affine() if n == 1 else part for part, n in zip(last, shape, strict=True))
