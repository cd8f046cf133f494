"""Python numbers that a recording depends on: which conclusions were drawn from them.

    if batch_idx % 2 == 0:          the comparison is answered, and the answer noted as a conclusion
    loss = loss * (step / 100)      the number becomes an input of the program
    table[batch_idx]                the value itself is a conclusion

A program fits a later call if every conclusion would be drawn again. `Tracked` is not an `int`, so
that C code must ask for its value, and it says it is one, so that `isinstance(x, int)` holds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.overrides import TorchFunctionMode

Values = Mapping[str, Any]
SLOTS = 16
"""How many tracked numbers may be inputs of one program; further ones are conclusions."""

_ARITHMETIC = (
    "add sub mul truediv floordiv mod pow and or xor lshift rshift".split()  # noqa: SIM905
)
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_UNARY = ("neg", "pos", "abs", "invert")
_TENSOR_ARITHMETIC = frozenset({"add", "sub", "mul", "truediv", "pow"})
_ELEMENTWISE = frozenset(
    f"{pre}{name}{post}"
    for name in ("add", "sub", "mul", "div", "true_divide", "pow", "maximum", "minimum")
    for pre, post in (("", ""), ("", "_"), ("__", "__"), ("__r", "__"), ("__i", "__"))
)


class Facts:
    """What one recording concluded from the numbers it was given."""

    def __init__(self) -> None:
        self._values: Values = {}
        self._conclusions: list[tuple[Callable[[Values], Any], Any]] = []
        self.inputs: list[Callable[[Values], Any]] = []
        #: The program's input for numbers, `[1, SLOTS]` of float64, while it is recorded.
        self.slots: torch.Tensor | None = None

    def begin(self, values: Values, slots: torch.Tensor | None) -> None:
        """Record, from the beginning."""
        self._values, self.slots = values, slots
        self._conclusions.clear()
        self.inputs.clear()

    def number(self, name: str) -> Any:
        """A stand-in for the named number."""
        return Tracked(self, operator.itemgetter(name), self._values[name])

    def conclude(self, compute: Callable[[Values], Any], answer: Any) -> None:
        """The recording holds only while `compute` gives this answer."""
        self._conclusions.append((compute, answer))

    def hold(self, values: Values) -> bool:
        """Would the recording be the same with these numbers?"""
        try:
            return all(compute(values) == answer for compute, answer in self._conclusions)
        except (ArithmeticError, KeyError):
            return False

    def fill(self, rows: int, values: Values) -> torch.Tensor:
        """The input for numbers, one row per micro-batch."""
        if not self.inputs:
            return _no_numbers(rows)
        row = [float(compute(values)) for compute in self.inputs]
        row += [0.0] * (SLOTS - len(row))
        return torch.tensor([row] * rows, dtype=torch.float64)

    def as_input(self, number: Tracked, like: torch.dtype | None) -> torch.Tensor | None:
        """The number as a 0-d tensor of the program; None when all slots are taken."""
        if self.slots is None or len(self.inputs) == SLOTS:
            return None
        value = self.slots[0, len(self.inputs)]
        self.inputs.append(number.compute)
        if like is not None and like.is_floating_point:
            return value.to(like)
        return value.to(torch.int64 if type(number.value) is int else torch.get_default_dtype())


_empty: dict[int, torch.Tensor] = {}


def _no_numbers(rows: int) -> torch.Tensor:
    if rows not in _empty:
        _empty[rows] = torch.zeros(rows, SLOTS, dtype=torch.float64)
    return _empty[rows]


class Tracked:
    """A number that remembers how it was computed. See the module's text."""

    def __init__(self, facts: Facts, compute: Callable[[Values], Any], value: Any) -> None:
        self.facts, self.compute, self.value = facts, compute, value

    @property
    def __class__(self) -> type:
        return type(self.value)

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise TypeError(f"a number is not turned into a {kind.__name__}")

    def settle(self) -> Any:
        """The plain value; from now on the recording holds for this value only."""
        self.facts.conclude(self.compute, self.value)
        return self.value

    def __index__(self) -> int:
        return operator.index(self.settle())

    def __int__(self) -> int:
        return int(self.settle())

    def __float__(self) -> float:
        return float(self.settle())

    def __bool__(self) -> bool:
        compute, answer = self.compute, bool(self.value)
        self.facts.conclude(lambda values: bool(compute(values)), answer)
        return answer

    def __hash__(self) -> int:
        return hash(self.settle())

    def __str__(self) -> str:
        return str(self.settle())

    def __repr__(self) -> str:
        return repr(self.settle())

    def __format__(self, spec: str) -> str:
        return format(self.settle(), spec)

    def __round__(self, digits: int | None = None) -> Any:
        compute = self.compute
        return Tracked(self.facts, lambda v: round(compute(v), digits), round(self.value, digits))

    def __copy__(self) -> Any:
        return self.settle()

    def __deepcopy__(self, memo: Any) -> Any:
        return self.settle()

    def __reduce__(self) -> Any:
        return type(self.value), (self.settle(),)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = _resolved(getattr(func, "__name__", ""), args, kwargs or {})
        return func(*args, **kwargs)


class TrackedFactories(TorchFunctionMode):
    """Lets `torch.tensor(number)` and the like make an input of the program."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES and args:
            if is_tracked(args[0]):
                made = args[0].facts.as_input(args[0], None)
                dtype = kwargs.get("dtype")
                if made is not None:
                    return made if dtype is None else made.to(dtype)
            args = plain(args)
        return func(*args, **kwargs)


_FACTORIES = frozenset({torch.tensor, torch.as_tensor, torch.scalar_tensor})


def is_tracked(value: Any) -> bool:
    """True for a stand-in; `isinstance` is deceived by it."""
    return type(value) is Tracked


def plain(tree: Any) -> Any:
    """A nested value with plain numbers in place of stand-ins."""
    return pytree.tree_map(lambda v: v.settle() if is_tracked(v) else v, tree)


def evaluated(value: Any, values: Values) -> Any:
    """What a recorded value is, with these numbers."""
    return value.compute(values) if is_tracked(value) else value


def _resolved(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Arguments of a torch function: inputs of the program where it computes per element."""
    tensors = [a for a in args if isinstance(a, torch.Tensor)]

    def resolve(value: Any) -> Any:
        if not is_tracked(value):
            return value
        made = None
        if name in _ELEMENTWISE and tensors:
            made = value.facts.as_input(value, tensors[0].dtype)
        return value.settle() if made is None else made

    return pytree.tree_map(resolve, (args, kwargs))


def _binary(name: str, *, swapped: bool) -> Callable[[Tracked, Any], Any]:
    function = getattr(operator, f"{name}_" if name in ("and", "or") else name)

    def method(self: Tracked, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            made = None
            if name in _TENSOR_ARITHMETIC:
                made = self.facts.as_input(self, other.dtype)
            mine = self.settle() if made is None else made
            return function(other, mine) if swapped else function(mine, other)
        if getattr(type(other), "takes_over", False):
            return NotImplemented
        mine, theirs = self.compute, other.compute if is_tracked(other) else lambda _: other
        plain_other = other.value if is_tracked(other) else other
        left, right = (theirs, mine) if swapped else (mine, theirs)
        pair = (plain_other, self.value) if swapped else (self.value, plain_other)
        try:
            value = function(*pair)
        except TypeError:
            return NotImplemented
        return Tracked(self.facts, lambda v: function(left(v), right(v)), value)

    return method


def _comparison(name: str) -> Callable[[Tracked, Any], Any]:
    function = getattr(operator, name)

    def method(self: Tracked, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return function(self.settle(), other)
        mine, theirs = self.compute, other.compute if is_tracked(other) else lambda _: other
        answer = function(self.value, other.value if is_tracked(other) else other)
        self.facts.conclude(lambda v: function(mine(v), theirs(v)), answer)
        return answer

    return method


def _unary(name: str) -> Callable[[Tracked], Any]:
    function = getattr(operator, name)

    def method(self: Tracked) -> Any:
        compute = self.compute
        return Tracked(self.facts, lambda v: function(compute(v)), function(self.value))

    return method


for _name in _ARITHMETIC:
    setattr(Tracked, f"__{_name}__", _binary(_name, swapped=False))
    setattr(Tracked, f"__r{_name}__", _binary(_name, swapped=True))
for _name in _COMPARISONS:
    setattr(Tracked, f"__{_name}__", _comparison(_name))
for _name in _UNARY:
    setattr(Tracked, f"__{_name}__", _unary(_name))
