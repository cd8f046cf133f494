"""What a step did to a list, a deque or a set, as events that do it again after each run.

    losses.append(loss)     append the value of the run
    queue.append(x)         the same; a full deque drops its oldest by itself
    buffer.pop(0)           drop the first; buffer.clear(): clear
    seen.add(batch_idx)     add the number of the run

The container is looked up at each run: a hook may have replaced `self.losses` by a new list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from pantile.lightning.tape import Tape
from pantile.lightning.user_state import Place


def record_content(tape: Tape, place: Place, value: Any, before: Any) -> None:
    """Make events of the difference between a container and the copy made of it before."""
    if isinstance(value, set):
        _each(tape, place, "discard", before - value)
        _each(tape, place, "add", value - before)
        return
    items, old = list(value), list(before)
    dropped = _dropped(items, old)
    if dropped == len(old) > 0:
        tape.add(_do, (place, "clear"), {})
    elif dropped and not (isinstance(value, deque) and len(old) == value.maxlen):
        tape.add(_drop, (place, dropped), {})
    _each(tape, place, "append", items[len(old) - dropped :])


def _each(tape: Tape, place: Place, method: str, items: Iterable[Any]) -> None:
    for item in items:
        tape.add(_do, (place, method, item), {})


def _do(place: Place, method: str, *args: Any) -> None:
    getattr(place(), method)(*args)


def _drop(place: Place, count: int) -> None:
    container = place()
    for _ in range(min(count, len(container))):
        del container[0]


def _dropped(now: list[Any], before: list[Any]) -> int:
    """How many items are gone at the beginning; all, if what is left is not what was there."""
    for dropped in range(len(before)):
        rest = before[dropped:]
        if len(rest) <= len(now) and all(a is b for a, b in zip(rest, now, strict=False)):
            return dropped
    return len(before)
