"""Which executor of this process has which IPU, where the script chose one (strict mode).

`Options.useIpuId(1)` names a device; two executors cannot be attached to it at once. Without an id
there are always enough software devices.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

from pantile.enums import ConnectionType
from pantile.errors import Error, OfflineError
from pantile.options import Options


class Attachable(Protocol):
    """An executor, as far as it is asked whether it is attached."""

    def isAttachedToDevice(self) -> bool: ...


_holders: dict[int, weakref.ref[Attachable]] = {}
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


def offline_error(message: str) -> OfflineError:
    """The error for a device that options say is not there."""
    return OfflineError(
        message, fix="remove useOfflineIpuTarget() or ConnectionType.Never from the options"
    )
