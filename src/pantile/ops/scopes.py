"""Scopes that give the ops inside them a name prefix or attributes."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from pantile.errors import OperandTypeError
from pantile.ops.context import Recorder, current


class _Scope:
    """Tells the recorder that was active on entry about entry and exit; nothing on the CPU."""

    _kind: str
    _value: Any

    def __init__(self) -> None:
        self._entered: list[Recorder | None] = []

    def __enter__(self) -> Self:
        recorder = current()
        self._entered.append(recorder)
        if recorder is not None:
            recorder.push_scope(self._kind, self._value)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        recorder = self._entered.pop()
        if recorder is not None:
            recorder.pop_scope(self._kind)


class NameScope(_Scope):
    """Prefix the names of the ops in this scope with `name`."""

    _kind = "name"

    def __init__(self, name: str) -> None:
        super().__init__()
        if not isinstance(name, str):
            raise OperandTypeError(
                f"NameScope: argument name must be a str, not {type(name).__name__}",
                fix='pass a string, for example NameScope("encoder")',
            )
        self.name = self._value = name


class Attribute(_Scope):
    """Attach string attributes to the ops in this scope: `Attribute(__outline={"layer": "a"})`."""

    _kind = "attributes"

    def __init__(self, **attributes: dict[str, str]) -> None:
        super().__init__()
        for name, entries in attributes.items():
            if not isinstance(entries, dict):
                raise OperandTypeError(
                    f"Attribute: argument {name} must be a dict, not {type(entries).__name__}",
                    fix=f'pass a dictionary, for example Attribute({name}={{"key": "value"}})',
                )
        self._value = {name: dict(entries) for name, entries in attributes.items()}
