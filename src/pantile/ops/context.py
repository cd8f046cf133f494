"""What the ops talk to while a model is being captured.

    capture                         ops
    ───────                         ───
    with recording(recorder):
        model.forward(...)   ──►    identity_loss(x)  ──► current().mark_loss(out)
                                    Block("a")        ──► current().begin_block("a", None)
                                    nop(x)            ──► current().mark(out, "nop")

Outside `recording` there is no recorder, and every annotation is a no-op. The recorder belongs to
one thread, so models can be captured on several threads at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from pantile.options.environment import strict as strict_by_environment


class Recorder(Protocol):
    """What capture implements to hear about annotations.

    `strict` asks for PopTorch's refusals; `training` says whether gradients will be taken.
    """

    @property
    def strict(self) -> bool: ...
    @property
    def training(self) -> bool: ...

    def mark_loss(self, tensor: torch.Tensor) -> None:
        """`tensor` is the result of an `identity_loss`."""

    def begin_block(self, user_id: str, ipu_id: int | None) -> None:
        """Ops from here on belong to this block; it replaces whichever block was active."""

    def end_block(self) -> None:
        """A `Block` scope was left: no block is active until the next `begin_block`."""

    def mark(self, tensor: torch.Tensor, kind: str, **details: Any) -> None:
        """`tensor` carries a hint that does not change its value.

        | kind                   | details                         |
        |------------------------|---------------------------------|
        | `recompute_checkpoint` |                                 |
        | `available_memory`     | `proportion`                    |
        | `overlap_input`        | `mode` (an `OverlapMode`)       |
        | `overlap_output`       | `mode`                          |
        | `serialized_matmul`    | `mode`, `factor`, `keep_precision` |
        | `nop`                  |                                 |
        """

    def push_scope(self, kind: str, value: Any) -> None:
        """Ops from here on carry `value`.

        | kind         | value                                         |
        |--------------|-----------------------------------------------|
        | `name`       | the string given to `NameScope`               |
        | `attributes` | `{attribute: {key: value}}` of `Attribute`    |
        | `multi_conv` | the options of `MultiConv`, a frozen dataclass |
        """

    def pop_scope(self, kind: str) -> None:
        """Undo the latest `push_scope` of that kind."""


class _Context(threading.local):
    recorder: Recorder | None = None
    blocks_numbered: int = 0


_context = _Context()


def current() -> Recorder | None:
    """The recorder of the capture running on this thread, if there is one."""
    return _context.recorder


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Make `recorder` hear the annotations made in this scope; scopes can be nested.

    Blocks without an id are numbered from 0 in each scope, so two captures of one model agree.
    """
    outer = _context.recorder, _context.blocks_numbered
    _context.recorder, _context.blocks_numbered = recorder, 0
    try:
        yield
    finally:
        _context.recorder, _context.blocks_numbered = outer


def next_block_id() -> str:
    """An id for a block that was given none: "0", "1", …"""
    number = _context.blocks_numbered
    _context.blocks_numbered += 1
    return str(number)


def restart_block_ids() -> None:
    """Number the blocks without an id from 0 again."""
    _context.blocks_numbered = 0


def strict_mode() -> bool:
    """Whether PopTorch's own behaviour is asked for: by the capture, or outside it by the
    environment variable POPTORCH_STRICT."""
    recorder = _context.recorder
    return strict_by_environment() if recorder is None else recorder.strict


def isRunningOnIpu() -> bool:
    """True while `forward` is being captured, False when it runs natively on the CPU."""
    return _context.recorder is not None
