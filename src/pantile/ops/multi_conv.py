"""`MultiConv`: convolutions that the device plans and runs together. Numbers do not change."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode

from pantile.enums import MultiConvPlanType
from pantile.errors import CaptureError, OperandTypeError, OperandValueError
from pantile.ops.context import Recorder, current

_CONVOLUTIONS = frozenset(
    {
        torch.conv1d,
        torch.conv2d,
        torch.conv3d,
        torch.conv_transpose1d,
        torch.conv_transpose2d,
        torch.conv_transpose3d,
        torch.convolution,
    }
)


@dataclasses.dataclass(frozen=True)
class MultiConvOptions:
    """What the user chose; None = the planner's default. A tuple has one value a convolution."""

    available_memory_proportions: float | tuple[float, ...] | None = None
    partials_types: str | tuple[str, ...] | None = None
    enable_conv_dithering: bool | tuple[bool, ...] | None = None
    plan_type: MultiConvPlanType | None = None
    per_conv_reserved_tiles: int | None = None
    cycle_back_off: float | None = None


class _Active(threading.local):
    scope: MultiConv | None = None


_active = _Active()


class _CountConvolutions(TorchFunctionMode):
    count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func in _CONVOLUTIONS
        return func(*args, **(kwargs or {}))


class MultiConv:
    """Scope whose convolutions are planned together on the device; nothing happens on the CPU.

    The setters return the scope itself: `with MultiConv().planType(...).cycleBackOff(0.1): …`.
    """

    def __init__(self) -> None:
        self.options = MultiConvOptions()
        self._recorder: Recorder | None = None
        self._counter: _CountConvolutions | None = None

    def availableMemoryProportions(self, value: float | Iterable[float]) -> Self:
        """Proportion of a tile's memory for temporaries: one for all, or one a convolution."""
        return self._set("available_memory_proportions", _each(_proportion, value))

    def partialsTypes(self, value: torch.dtype | Iterable[torch.dtype]) -> Self:
        """Type of partial sums, float32 or float16: one for all, or one a convolution."""
        return self._set("partials_types", _each(_partials_type, value))

    def enableConvDithering(self, value: bool | Iterable[bool]) -> Self:
        """Spread convolutions over different tiles: one for all, or one a convolution."""
        return self._set("enable_conv_dithering", _each(_switch, value))

    def planType(self, value: MultiConvPlanType) -> Self:
        """Run the convolutions in parallel or one after the other."""
        if not isinstance(value, MultiConvPlanType):
            raise OperandTypeError(
                f"MultiConv.planType: Invalid plan type {value!r}",
                fix="pass a poptorch.MultiConvPlanType",
            )
        return self._set("plan_type", value)

    def perConvReservedTiles(self, value: int) -> Self:
        """Number of tiles kept for each convolution."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise OperandTypeError(
                f"MultiConv.perConvReservedTiles: value={value!r} is not an int",
                fix="pass a number of tiles",
            )
        return self._set("per_conv_reserved_tiles", value)

    def cycleBackOff(self, value: float) -> Self:
        """Proportion of cycles given up so that convolutions can run in parallel."""
        return self._set("cycle_back_off", _proportion(value))

    def __enter__(self) -> Self:
        self._recorder = current()
        if self._recorder is None:
            return self
        if _active.scope is not None:
            raise CaptureError(
                "Nested poptorch.MultiConv is not supported",
                fix="leave the outer MultiConv before the inner one begins",
            )
        _active.scope = self
        self._recorder.push_scope("multi_conv", self.options)
        self._counter = _CountConvolutions()
        self._counter.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._recorder is None or self._counter is None:
            return
        _active.scope = None
        self._counter.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._recorder.pop_scope("multi_conv")
        if kind is None and self._counter.count == 0:
            raise CaptureError(
                "Unexpected end_multi_conv: no convolution in the poptorch.MultiConv scope",
                fix="call the convolutions inside the scope, or remove it",
            )

    def _set(self, name: str, value: Any) -> Self:
        changes: dict[str, Any] = {name: value}
        self.options = dataclasses.replace(self.options, **changes)
        return self


def _each(check: Any, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(check(item) for item in value)
    return check(value)


def _proportion(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise OperandTypeError(
            f"MultiConv: value={value!r} is not a proportion", fix="pass a float from 0 to 1"
        )
    if not 0 <= value <= 1:
        raise OperandValueError(
            f"MultiConv: value={value!r} is not between 0 and 1", fix="pass a float from 0 to 1"
        )
    return float(value)


def _partials_type(value: Any) -> str:
    names = {torch.float32: "float", torch.float16: "half"}
    if value not in names:
        raise OperandValueError(
            f"MultiConv.partialsTypes: Invalid partials types: {value!r}",
            fix="pass torch.float32 or torch.float16",
        )
    return names[value]


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise OperandTypeError(
            f"MultiConv.enableConvDithering: value={value!r} is not a bool",
            fix="pass True or False",
        )
    return value
