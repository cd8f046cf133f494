"""Who must be asked before the host reads a weight, and how an object comes to ask.

    Watch ── weak ──► owner (an executor)          one per wrapped model
      │▲
      ▼│
    Link  ── weak ──► module | parameter | buffer  one per instrumented object

An object can be watched by several owners: two wrapped models may share an embedding. Links live
in a table keyed by identity and not in the object's `__dict__`, so that copying or pickling the
object never has anything to strip.

An object asks because its class is swapped for a subclass that looks like the original: same
name, same module, and `obj.__class__` still answers with the original.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

_ORIGINAL = "_pantile_original"
_set_real_class = object.__dict__["__class__"].__set__

ClassMaker = Callable[[type, bool], type]
"""(original class, is it the root of a wrapped model) -> instrumented class."""


class WeightOwner(Protocol):
    """What owns the device copy of the weights: an executor.

    It must be weakly referenceable. `copyWeightsToHostIfNeeded` can be called by any thread at
    any time, so it must serialise its pulls, and return at once when the host is up to date.
    """

    def copyWeightsToHostIfNeeded(self) -> bool: ...

    def destroy(self) -> None: ...


class Watch:
    """The bond between one owner and everything it instrumented. It keeps neither alive."""

    def __init__(self, owner: WeightOwner) -> None:
        # A dead owner has no device weights left to pull, so its death is a release.
        self.owner: weakref.ref[WeightOwner] = weakref.ref(owner, lambda _: self.release())
        self._links: list[Link] = []

    def add(self, obj: Any, make_class: ClassMaker, *, root: bool = False) -> None:
        """Watch `obj` too, and give it its instrumented class."""
        with lock:
            link = link_of(obj) or Link(obj, make_class)
            if self not in link.watches:
                link.watches = (*link.watches, self)
                self._links.append(link)
            if root:
                link.root = self
            link.dress()

    def release(self) -> None:
        """Let go of everything; what nobody else watches gets its own class back."""
        with lock:
            links, self._links = self._links, []
            for link in links:
                link.watches = tuple(watch for watch in link.watches if watch is not self)
                link.root = None if link.root is self else link.root
                link.dress()
                if not link.watches:
                    link.forget()


class Link:
    """One instrumented object and the watches on it, oldest first."""

    def __init__(self, obj: Any, make_class: ClassMaker) -> None:
        self.watches: tuple[Watch, ...] = ()
        self.root: Watch | None = None
        self._make_class = make_class
        self._key = key = id(obj)
        self._ref = weakref.ref(obj, lambda _: _links.pop(key, None))
        _links[key] = self

    def pull(self) -> None:
        """Ask every owner for its weights, unless this thread is inside such a request."""
        waiting = [watch for watch in self.watches if watch not in _thread.suspended]
        if not waiting:
            return
        with suspend(waiting):
            for watch in waiting:
                owner = watch.owner()
                if owner is not None:
                    owner.copyWeightsToHostIfNeeded()

    def dress(self) -> None:
        """Give the object the class its watches call for, unless the link is an old one."""
        obj = self._ref()
        if obj is not None and _links.get(self._key) is self:
            self.rebase(obj, original_class(type(obj)))

    def undress(self) -> None:
        """Give the object its own class back and keep the watches."""
        obj = self._ref()
        if obj is not None:
            _set_real_class(obj, original_class(type(obj)))

    def rebase(self, obj: Any, original: type) -> None:
        """Make `original` the object's own class, instrumented if anybody watches."""
        watched = bool(self.watches)
        made = self._make_class(original, self.root is not None) if watched else original
        if type(obj) is not made:
            _set_real_class(obj, made)

    def forget(self) -> None:
        """Drop the link from the table."""
        if _links.get(self._key) is self:
            del _links[self._key]


class _Thread(threading.local):
    """What the current thread must not ask."""

    suspended: tuple[Watch, ...] = ()


_links: dict[int, Link] = {}
_thread = _Thread()
lock = threading.RLock()


def link_of(obj: object) -> Link | None:
    """The link of an instrumented object, else None. It reads no attribute of the object."""
    return _links.get(id(obj))


def links() -> dict[int, Link]:
    """The links of all instrumented objects by their ids: for who asks too often to call."""
    return _links


def pull(obj: object) -> None:
    """Bring the weights behind `obj` up to date if it is instrumented."""
    link = _links.get(id(obj))
    if link is not None:
        link.pull()


@contextmanager
def suspend(watches: Collection[Watch]) -> Iterator[None]:
    """Ask none of `watches` in this thread, inside."""
    before = _thread.suspended
    _thread.suspended = (*before, *watches)
    try:
        yield
    finally:
        _thread.suspended = before


def original_class(cls: type) -> type:
    """The class that an instrumented class stands for; any other class stands for itself."""
    original: type = cls.__dict__.get(_ORIGINAL, cls)
    return original


def is_instrumented(cls: type) -> bool:
    """Whether `cls` was made by `instrumented_class`."""
    return _ORIGINAL in cls.__dict__


def instrumented_class(original: type, seed: type, methods: dict[str, Any]) -> type:
    """Subclass `original` with `methods`, under the same name and with no side effect.

    `seed` is a superclass of `original` whose `__init_subclass__` does nothing. The class is born
    as its child and moved under `original` afterwards, with the metaclass's own `__new__` left
    out: a registry of user classes must not see a new entry, nor ask for a missing keyword.
    """
    namespace = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__class__": property(_get_class, _swap_class),
        _ORIGINAL: original,
        **methods,
    }
    made: type = type.__new__(type(original), original.__name__, (seed,), namespace)
    if seed is not original:
        made.__bases__ = (original,)
    return made


def _get_class(obj: object) -> type:
    return original_class(type(obj))


def _swap_class(obj: object, cls: type) -> None:
    """Somebody else swaps the class too, as `torch.nn.utils.parametrize` does: let both hold."""
    link = link_of(obj)
    if link is None:
        _set_real_class(obj, cls)
    else:
        link.rebase(obj, original_class(cls))
