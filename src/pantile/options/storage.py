"""Where option values live: named, checked, and frozen once they are in use.

    class _JitOptions(OptionGroup):
        FIELDS = {"trace_model": Field(flag, False, setter="traceModel")}

    group.trace_model            read
    group.trace_model = True     checked and stored
    group.set(trace_model=True)  the same
    group._freeze()              from now on every change raises FrozenOptions

A field without a default exists only after it was set: `exists("random_seed")` tells.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Self

from pantile.errors import FrozenOptions, UnknownKeyword, UnknownOption
from pantile.options.validate import Check, did_you_mean, instance_of


class _Unset(Enum):
    UNSET = "unset"


UNSET = _Unset.UNSET

# Names of older releases that no spelling distance would lead to the new one.
RENAMED = {"anchorMode": "outputMode", "AnchorMode": "OutputMode", "anchor_mode": "output_mode"}


@dataclass(frozen=True)
class Field:
    """One option value: how it is checked, what it is at first, who sets it."""

    check: Check
    default: Any = UNSET
    setter: str = ""


class Freezable:
    """Something that can be changed until it is in use."""

    _is_frozen: bool = False

    def checkIsFrozen(self, option: str | None = None) -> None:
        """Raise `FrozenOptions` if nothing may change any more."""
        if self._is_frozen:
            name = f": {option}" if option else ""
            raise FrozenOptions(
                f"Can't modify frozen Options{name}",
                fix="set it before the options are given to a DataLoader or a model, "
                "or change a copy: options.clone()",
            )

    def _freeze(self) -> None:
        self._is_frozen = True

    def _unfreeze(self) -> None:
        self._is_frozen = False


class OptionGroup(Freezable):
    """Named values that read like attributes and are checked when assigned."""

    FIELDS: ClassVar[Mapping[str, Field]] = {}
    # How users reach the group, for messages: "" for Options itself, else such as "Training.".
    PREFIX: ClassVar[str] = ""

    _values: dict[str, Any]

    def __init__(self) -> None:
        self._values = {
            name: copy.deepcopy(field.default)
            for name, field in self.FIELDS.items()
            if field.default is not UNSET
        }

    def set(self, **values: Any) -> Self:
        """Change values that exist. Either all are stored or, on an error, none."""
        for name in values:
            self.checkIsFrozen(name)
            if name not in self._values:
                raise UnknownKeyword(f"there is no option {name!r} to set", fix=self._hint(name))
        self._values.update({name: self._checked(name, new) for name, new in values.items()})
        return self

    def createOrSet(self, **values: Any) -> Self:
        """Change values, creating the ones that do not exist."""
        for name in values:
            self.checkIsFrozen(name)
        self._values.update({name: self._checked(name, new) for name, new in values.items()})
        return self

    def exists(self, name: str) -> bool:
        """Whether the value has a default or was set."""
        return name in self._values

    def deleteIfExists(self, name: str) -> Self:
        """Forget a value."""
        self.checkIsFrozen(name)
        self._values.pop(name, None)
        return self

    def toDict(self) -> dict[str, Any]:
        """All values of the group, enums as numbers."""
        return {name: plain_value(value) for name, value in self._values.items()}

    def __call__(self, name: str) -> Any:
        return getattr(self, name)

    def __getattr__(self, name: str) -> Any:
        # Reached only when Python found no attribute. Private names are looked up in vain by
        # copy and pickle on half-built objects: they must fail fast and without `_values`.
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            raise self._unknown(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        self.checkIsFrozen(name)
        if name not in self._values:
            raise self._unknown(name, assigning=True)
        self.set(**{name: value})

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *self._values})

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_show(value)}" for name, value in self._values.items())
        return f"{type(self).__name__}({shown})"

    def _checked(self, name: str, value: Any) -> Any:
        field = self.FIELDS.get(name)
        if field is not None:
            return field.check(self._public_name(name), value)
        if name in self._values:
            return instance_of(type(self._values[name]))(name, value)
        return value

    def _public_name(self, name: str) -> str:
        return self.PREFIX + (self.FIELDS[name].setter or name)

    def _unknown(self, name: str, *, assigning: bool = False) -> UnknownOption:
        field = self.FIELDS.get(name)
        if field is not None:
            return UnknownOption(
                f"option {name!r} is not set",
                fix=f"set it with options.{self._public_name(name)}(...)",
            )
        if assigning and hasattr(type(self), name):
            return UnknownOption(
                f"{self.PREFIX}{name} cannot be assigned to", fix=self._fix_assignment(name)
            )
        return UnknownOption(f"{type(self).__name__} has no option {name!r}", fix=self._hint(name))

    def _fix_assignment(self, name: str) -> str:
        if callable(getattr(type(self), name)):
            return f"call it: options.{self.PREFIX}{name}(...)"
        return "change it through its own setters"

    def _hint(self, name: str) -> str:
        if name in RENAMED:
            return f"it is called {RENAMED[name]!r} now"
        public = {attribute for attribute in dir(type(self)) if not attribute.startswith("_")}
        known = (public - {"FIELDS", "PREFIX"}) | set(self._values) | set(self.FIELDS)
        return did_you_mean(name, known) or f"help({type(self).__name__}) lists the options"


def _show(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)


def plain_value(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    return value
