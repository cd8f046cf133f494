"""What a fork server imports, so that workers start in milliseconds.

When the main process is gone the server ends, and takes its interpreter apart first: with torch in
it that lasts seconds on a busy machine. There is nothing in it to be saved, so it leaves at once.
"""

from __future__ import annotations

import atexit
import os

import pantile.data.worker  # noqa: F401 - importing it is the purpose

_server = os.getpid()


def _leave() -> None:
    if os.getpid() == _server:  # and not in a worker, whatever its Python does with inherited hooks
        os._exit(0)


atexit.register(_leave)
