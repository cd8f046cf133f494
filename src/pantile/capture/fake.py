"""Fake tensors for capture, and what happens to the real ones that forward meets.

State and arguments are fake: no memory, no arithmetic. Other tensors that forward reaches (plain
attributes, globals) are constants of the graph: ops on constants alone are computed at once, so
`if self.table.max() > 3` works, and writing to one is an error, because the static graph could not
repeat it (in strict mode it happens once, as in PopTorch).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from pantile.capture.known_values import KnownValues
from pantile.capture.rebound import Attributes, write_error
from pantile.capture.refusals import host_operand
from pantile.errors import CaptureError

_DEVICE = torch.ops.prim.device.default
_LIFT = frozenset({torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default})


def fake_mode() -> FakeTensorMode:
    """A mode with fixed shapes, in which asking for a value is an error."""
    shapes = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    return FakeTensorMode(shape_env=shapes, static_shapes=True, allow_non_fake_inputs=True)


def fake_like(
    mode: FakeTensorMode, tensor: torch.Tensor, what: str, *, in_place: bool = False
) -> torch.Tensor:
    """A fake tensor with the shape, strides and dtype of a real one, sharing nothing with it.

    With `in_place` it also has the real one's place in its memory (arguments differ in theirs from
    one micro-batch to the next): the gradient of `as_strided` depends on it.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise CaptureError(
            f"{what} is a {tensor.layout} tensor; a static graph holds dense tensors only",
            fix="convert it with .to_dense()",
        )
    if tensor.device.type != "cpu":
        raise CaptureError(f"{what} is on device {tensor.device}", fix='move it with .to("cpu")')
    with mode:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        if in_place and tensor.storage_offset():
            whole = torch.empty(_elements(tensor), dtype=tensor.dtype)
            fake = whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    if tensor.is_conj() or tensor.is_neg():
        raise CaptureError(
            f"{what} is a lazy conjugate or negative view", fix="call .resolve_conj()"
        )
    return fake


def _elements(tensor: torch.Tensor) -> int:
    """How many elements the memory of a tensor has, other views of it included."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


class HostConstants(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes ops on real tensors at once; refuses to write to them.

    `moved` holds, in strict mode, the real tensors that forward moved to the device: others may not
    meet the device's tensors.
    """

    supports_higher_order_operators = True

    def __init__(self, attributes: Attributes, *, moved: dict[int, torch.Tensor] | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.used: dict[int, torch.Tensor] = {}
        self._attributes = attributes
        self._strict = moved is not None
        self._moved = moved
        self._known = KnownValues()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # asked twice for every op
        if isinstance(func, torch._ops.OpOverload) and func not in _LIFT:
            tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            real = [not isinstance(t, FakeTensor) for t in tensors]
            if any(real):
                self.used.update((id(t), t) for t, r in zip(tensors, real, strict=True) if r)
            if func._schema.is_mutable and any(real):
                self._check_write(func, args, kwargs, all_real=all(real))
            if tensors and all(real) and torch.Tag.nondeterministic_seeded not in func.tags:
                with _disable_current_modes():
                    return self._follow(tensors, func(*args, **kwargs))
            if self._moved is not None and any(real):
                self._check_moved(tensors)
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        answer = self._known.answer(func, args, kwargs)
        if answer is not None:
            return answer
        result = func(*args, **kwargs)
        self._known.follow(func, args, kwargs, result)
        return result

    def _follow(self, tensors: list[torch.Tensor], result: Any) -> Any:
        """What is made of tensors that were moved to the device is there too."""
        if self._moved is not None and any(id(tensor) in self._moved for tensor in tensors):
            for made in pytree.tree_leaves(result):
                if isinstance(made, torch.Tensor):
                    self._moved[id(made)] = made
        return result

    def _check_moved(self, tensors: list[torch.Tensor]) -> None:
        assert self._moved is not None
        for tensor in tensors:
            if not isinstance(tensor, FakeTensor) and id(tensor) not in self._moved:
                raise host_operand(tensor)

    def _check_write(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, all_real: bool
    ) -> None:
        if self._strict and all_real:
            return
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            written = [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
            for tensor in written:
                if not isinstance(tensor, FakeTensor):
                    raise write_error(self._attributes.name_of(tensor), str(func))
