"""Placement: which ops belong to which block, and so to which IPU.

    with Block("a", ipu_id=0): …        the ops in the scope
    Block.start("a"); …                 the ops until the next start
    BeginBlock(layer, "a")              the ops from this layer on, until the next block
    @BlockFunction("a")                 the ops of a function

All of them only speak to the recorder of a capture; on the CPU they do nothing. `BeginBlock` adds
a forward pre-hook, which leaves the class, parameter names and state_dict of the module alone, and
which copies and pickles with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from torch import nn

from pantile.errors import PlacementError
from pantile.ops.context import current, next_block_id, restart_block_ids

P = ParamSpec("P")
T = TypeVar("T")


class Block(nn.Module):
    """A scope whose ops are placed together.

    Leaving the scope ends the block: an op after it, outside any block, has no place.
    """

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None) -> None:
        super().__init__()
        _check_ipu_id(ipu_id)
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __enter__(self) -> Self:
        _begin(self._user_id, self._ipu_id)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        recorder = current()
        if recorder is not None:
            recorder.end_block()

    @staticmethod
    def useAutoId() -> None:
        """Number blocks that have no id from "0" again; call it at the top of `forward`."""
        restart_block_ids()

    @staticmethod
    def start(user_id: str | None = None, ipu_id: int | None = None) -> None:
        """Begin a block that lasts until the next one begins."""
        _check_ipu_id(ipu_id)
        _begin(user_id, ipu_id)

    def extra_repr(self) -> str:
        return f"user_id={self._user_id}, ipu_id={self._ipu_id}"


class _BeginBlockHook:
    """Forward pre-hook that begins a block. A class of its own, so that it can be pickled."""

    def __init__(self, user_id: str | None, ipu_id: int | None) -> None:
        self.user_id = user_id
        self.ipu_id = ipu_id

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        _begin(self.user_id, self.ipu_id)

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self.user_id}, ipu_id={self.ipu_id})"


class LegacyBeginBlockFn(nn.Module):
    """A callable that begins a block each time it is called."""

    def __init__(
        self,
        layer_to_call: Callable[..., Any],
        user_id: str | None = None,
        ipu_id: int | None = None,
    ) -> None:
        super().__init__()
        self._layer_to_call = layer_to_call
        self._user_id = user_id
        self._ipu_id = ipu_id

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Begin the block and call the wrapped callable."""
        _begin(self._user_id, self._ipu_id)
        return self._layer_to_call(*args, **kwargs)

    def extra_repr(self) -> str:
        return f"user_id={self._user_id}, ipu_id={self._ipu_id}"


def BeginBlock(layer_to_call: Any, user_id: str | None = None, ipu_id: int | None = None) -> Any:
    """Begin a block when `layer_to_call` runs; it lasts until the next block begins.

    A module is annotated in place and returned. Any other callable is wrapped in a module.
    """
    _check_ipu_id(ipu_id)
    if not callable(layer_to_call):
        raise PlacementError(
            f"BeginBlock: layer_to_call={type(layer_to_call).__name__} is not a module and cannot "
            "be called",
            fix="pass an nn.Module, or a function",
        )
    if not isinstance(layer_to_call, nn.Module):
        return LegacyBeginBlockFn(layer_to_call, user_id, ipu_id)
    if _block_hooks(layer_to_call):
        raise PlacementError(
            f"BeginBlock: the {type(layer_to_call).__name__} module has already been assigned to a "
            "block",
            fix="call poptorch.removeBlocks(module) first",
        )
    layer_to_call.register_forward_pre_hook(_BeginBlockHook(user_id, ipu_id))
    return layer_to_call


def BlockFunction(
    user_id: str | None = None, ipu_id: int | None = None
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator that runs a whole function inside a block."""
    _check_ipu_id(ipu_id)

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def in_block(*args: P.args, **kwargs: P.kwargs) -> T:
            with Block(user_id, ipu_id):
                return function(*args, **kwargs)

        return in_block

    return decorate


def removeBlocks(module: nn.Module) -> None:
    """Take back every `BeginBlock` on `module` and the modules inside it."""
    for part in module.modules():
        for key in _block_hooks(part):
            del part._forward_pre_hooks[key]


def _block_hooks(module: nn.Module) -> list[int]:
    return [
        key for key, hook in module._forward_pre_hooks.items() if isinstance(hook, _BeginBlockHook)
    ]


def _begin(user_id: str | None, ipu_id: int | None) -> None:
    recorder = current()
    if recorder is not None:
        recorder.begin_block(next_block_id() if user_id is None else str(user_id), ipu_id)


def _check_ipu_id(ipu_id: object) -> None:
    if ipu_id is None or (isinstance(ipu_id, int) and ipu_id >= 0):
        return
    raise PlacementError(
        f"ipu_id={ipu_id!r} is not an IPU number",
        fix="pass an integer from 0 on, or leave it out",
    )
