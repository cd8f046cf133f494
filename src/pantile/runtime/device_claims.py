"""Which executor has which IPU, where the script chose one (strict mode).

`Options.useIpuId(1)` names a device; two executors cannot be attached to it at once. Without an id
there are always enough software devices. Processes that set POPTORCH_WAIT_FOR_IPU take turns: each
holds a lock between processes while it is attached, and waits for the one that has it.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from contextlib import ExitStack
from typing import Protocol

from pantile.enums import ConnectionType
from pantile.errors import Error, OfflineError
from pantile.logging import TRACE, logger
from pantile.options import Options, environment
from pantile.runtime.registry import own_folder
from pantile.store.lock import exclusive


class Attachable(Protocol):
    """An executor, as far as it is asked whether it is attached."""

    def isAttachedToDevice(self) -> bool: ...


_holders: dict[int, weakref.ref[Attachable]] = {}
_turns: weakref.WeakKeyDictionary[Attachable, ExitStack] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def claim_device(executor: Attachable, options: Options) -> None:
    """Take the device that the options name, or raise if another executor is attached to it."""
    offline = options.connection_type is ConnectionType.Never
    if not options.is_strict or not options.exists("ipu_id") or offline:
        return
    device: int = options.ipu_id
    with _lock:
        known = _holders.get(device)
        holder = known() if known is not None else None
        if holder is not None and holder is not executor and holder.isAttachedToDevice():
            raise Error(
                f"Failed to acquire IPU {device}: another executor is attached to it",
                fix="call detachFromDevice() on that executor first, or choose another useIpuId",
            )
        _holders[device] = weakref.ref(executor)
    if environment.waits_for_ipu() and executor not in _turns:
        _take_turn(executor, device)


def release_device(executor: Attachable) -> None:
    """Let another process have the device."""
    turn = _turns.pop(executor, None)
    if turn is not None:
        _end(turn, os.getpid())


def _take_turn(executor: Attachable, device: int) -> None:
    """Wait until no other process is attached to the device."""
    turn = ExitStack()
    turn.enter_context(
        exclusive(
            own_folder() / f"ipu-{device}.lock",
            wait_seconds=math.inf,
            notice_after=0.0,
            notice=lambda owner: logger.log(TRACE, "No IPU available, sleeping: %s has it", owner),
        )
    )
    weakref.finalize(executor, _end, turn, os.getpid())
    _turns[executor] = turn


def _end(turn: ExitStack, process: int) -> None:
    """Close the lock, unless a fork merely copied the executor that holds it."""
    if os.getpid() == process:
        turn.close()


def offline_error(message: str) -> OfflineError:
    """The error for a device that options say is not there."""
    return OfflineError(
        message, fix="remove useOfflineIpuTarget() or ConnectionType.Never from the options"
    )
