"""Values of tensors that forward makes from nothing but numbers: masks, ranges, tables.

    mask = torch.full((8, 8), -inf).triu(1)       # known: made of constants alone
    if bool((mask == causal).all()): ...          # so its value can be asked for

Such a tensor stays an ordinary node of the graph; beside it the value is computed once, and when
Python asks for it (`if`, .item()) or when its size decides a shape (nonzero), it is at hand. The
answer is the same in every step, so the recorded branch is the right one.

    if torch.rand([]) < self.layerdrop: ...       # never, when layerdrop is 0

A uniform draw is not known, but it lies in [0, 1), and that decides some comparisons too.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

aten = torch.ops.aten

_LARGEST = 1 << 22  # elements; a causal mask of 2048 x 2048
_UNDEFINED = frozenset(
    {aten.empty, aten.empty_like, aten.empty_permuted, aten.empty_strided, aten.new_empty}
    | {aten.new_empty_strided}
)
_SHAPE_ONLY = frozenset(
    {aten.zeros_like, aten.ones_like, aten.full_like, aten.new_zeros, aten.new_ones, aten.new_full}
)
_LIFT = frozenset({aten.lift_fresh, aten.lift_fresh_copy})
_ASKS = frozenset({aten._local_scalar_dense, aten.equal})
_UNIFORM = frozenset({aten.rand, aten.rand_like})
_SAME = frozenset({aten.detach, aten.alias})
_COMPARES = frozenset({aten.lt.Scalar, aten.ge.Scalar})


class KnownValues:
    """Follows the ops of one capture and remembers what is constant."""

    def __init__(self) -> None:
        # The fake tensor is kept with its value, so that its id stays its own.
        self._values: dict[int, tuple[FakeTensor, torch.Tensor]] = {}
        self._uniform: dict[int, FakeTensor] = {}

    def answer(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an op that needs values gives, or None if they are not known."""
        if func.overloadpacket in _ASKS:
            return self._compute(func, args, kwargs) if self._all_known(args, kwargs) else None
        if not _sized_by_values(func, args) or not self._all_known(args, kwargs):
            return None
        return pytree.tree_map_only(torch.Tensor, self._lift, self._compute(func, args, kwargs))

    def _lift(self, value: torch.Tensor) -> FakeTensor:
        """A constant of the graph."""
        fake: FakeTensor = aten.lift_fresh_copy.default(value)
        with _disable_current_modes():
            # A write that is followed must not reach the constant: the graph repeats the write.
            self._values[id(fake)] = (fake, value.clone())
        return fake

    def follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Take note of an op that was recorded."""
        if func._schema.is_mutable:
            self._follow_write(func, args, kwargs)
        elif self._is_uniform(func, args):
            self._uniform[id(result)] = result
        elif func in _COMPARES and id(args[0]) in self._uniform:
            self._compare_with_bounds(func, args[1], result)
        elif self._is_constant(func, args, kwargs) and _small(result):
            values = self._compute(func, args, kwargs)
            pairs = zip(pytree.tree_leaves(result), pytree.tree_leaves(values), strict=True)
            for fake, value in pairs:
                if isinstance(fake, FakeTensor):
                    self._values[id(fake)] = (fake, value)

    def _is_uniform(self, func: Any, args: Any) -> bool:
        packet = func.overloadpacket
        return packet in _UNIFORM or (packet in _SAME and id(args[0]) in self._uniform)

    def _compare_with_bounds(self, func: Any, number: float, result: FakeTensor) -> None:
        if number <= 0 or number >= 1:
            below = number >= 1
            answer = below if func is aten.lt.Scalar else not below
            with _disable_current_modes():
                self._values[id(result)] = (result, torch.full(result.shape, answer))

    def _is_constant(self, func: Any, args: Any, kwargs: Any) -> bool:
        packet = func.overloadpacket
        # Ops of other libraries may have effects: they run when the graph runs, not now.
        if func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags:
            return False
        if packet in _UNDEFINED:
            return False
        return packet in _SHAPE_ONLY or self._all_known(args, kwargs)

    def _all_known(self, args: Any, kwargs: Any) -> bool:
        fakes = _fakes((args, kwargs))
        return all(id(fake) in self._values for fake in fakes)

    def _compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(FakeTensor, self._value, (args, kwargs))
        with _disable_current_modes(), torch.no_grad():
            result = func(*args, **kwargs)
            # A lifted constant belongs to the user, who may write to it.
            return result.clone() if func.overloadpacket in _LIFT else result

    def _value(self, fake: FakeTensor) -> torch.Tensor:
        if id(fake) in self._values:
            return self._values[id(fake)][1]
        with _disable_current_modes():
            return torch.empty(fake.shape, dtype=fake.dtype)  # only its shape is read

    def _follow_write(self, func: Any, args: Any, kwargs: Any) -> None:
        repeatable = func.namespace == "aten" and torch.Tag.nondeterministic_seeded not in func.tags
        if repeatable and self._all_known(args, kwargs):
            self._compute(func, args, kwargs)
            return
        written = {_memory(fake) for fake in _fakes(_written(func, args, kwargs))}
        self._values = {
            key: pair for key, pair in self._values.items() if _memory(pair[0]) not in written
        }
        self._uniform = {
            key: fake for key, fake in self._uniform.items() if _memory(fake) not in written
        }


def _sized_by_values(func: Any, args: Any) -> bool:
    """Whether the size of the result depends on values; that of `x[index]` only for masks."""
    if func.overloadpacket is aten.index:
        masks = (torch.bool, torch.uint8)
        return any(isinstance(i, torch.Tensor) and i.dtype in masks for i in args[1])
    return torch.Tag.dynamic_output_shape in func.tags


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    return [
        args[i] if i < len(args) else kwargs.get(argument.name)
        for i, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def _fakes(tree: Any) -> list[FakeTensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, FakeTensor)]


def _memory(fake: FakeTensor) -> int:
    identity: int = fake.untyped_storage()._cdata
    return identity


def _small(result: Any) -> bool:
    fakes = _fakes(result)
    return bool(fakes) and all(fake.numel() <= _LARGEST for fake in fakes)
