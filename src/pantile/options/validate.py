"""Checks of a single option value.

Each check takes the option's public name and a value, and returns the value to store, or raises
an error that names the option and says what to write instead:

    check("deviceIterations", 4)      -> 4
    check("deviceIterations", 0)      OptionError: deviceIterations must be at least 1, not 0
    check("deviceIterations", 4.0)    OptionTypeError: deviceIterations takes an int, not 4.0
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable
from enum import Enum
from numbers import Integral, Real
from typing import Any

from pantile.errors import OptionError, OptionRangeError, OptionTypeError

Check = Callable[[str, Any], Any]


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, as a question, or None if nothing is close."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"did you mean {by_lower[close[0]]!r}?" if close else None


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0].lower() in "aeio" else f"a {noun}"


def integer(option: str, value: Any) -> int:
    """A whole number. `True` is refused: it is an int to Python, but never what was meant."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise OptionTypeError(
            f"{option} takes an int, not {value!r} ({type(value).__name__})",
            fix=f"write {option}({_nearest_int(value)})",
        )
    return int(value)


def _nearest_int(value: Any) -> int:
    try:
        return max(1, int(value))
    except (TypeError, ValueError, OverflowError):
        return 1


def at_least(minimum: int) -> Check:
    """A whole number that is not smaller than `minimum`."""

    def check(option: str, value: Any) -> int:
        number = integer(option, value)
        if number < minimum:
            raise OptionError(
                f"{option} must be at least {minimum}, not {number}",
                fix=f"write {option}({minimum}) or more",
            )
        return number

    return check


positive = at_least(1)
not_negative = at_least(0)


def flag(option: str, value: Any) -> bool:
    """True or False, nothing that merely looks like it."""
    if not isinstance(value, bool):
        raise OptionTypeError(
            f"{option} takes a bool, not {value!r} ({type(value).__name__})",
            fix=f"write {option}(True) or {option}(False)",
        )
    return value


def zero_or_one_as_flag(value: Any) -> Any:
    """0 and 1 as a bool, since scripts pass command line switches on; the rest as it is."""
    return bool(value) if isinstance(value, Integral) and value in (0, 1) else value


def text(option: str, value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise OptionTypeError(
            f"{option} takes a str, not {value!r} ({type(value).__name__})",
            fix=f'write {option}("...")',
        )
    return value


def path_text(option: str, value: Any) -> str:
    """A path, kept as a string."""
    try:
        return os.fsdecode(value)
    except TypeError:
        raise OptionTypeError(
            f"{option} takes a path, not {value!r} ({type(value).__name__})",
            fix=f'write {option}("some/directory")',
        ) from None


def texts(option: str, value: Any) -> list[str]:
    """A list of strings. One string is refused: it would be read letter by letter."""
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        raise OptionTypeError(
            f"{option} takes a list of str, not {value!r} ({type(value).__name__})",
            fix=f'write {option}(["..."])',
        )
    return [text(option, item) for item in value]


def member_of(enum: type[Enum]) -> Check:
    """A member of `enum`, or one of its values."""

    def check(option: str, value: Any) -> Enum:
        if isinstance(value, enum):
            return value
        try:
            if isinstance(value, bool | Enum):
                raise ValueError
            return enum(value)
        except ValueError:
            names = ", ".join(member.name for member in enum)
            raise OptionTypeError(
                f"{option} takes {_a(enum.__name__)}, not {value!r} ({type(value).__name__})",
                fix=f"write one of poptorch.{enum.__name__}: {names}",
            ) from None

    return check


def one_of(*choices: str) -> Check:
    """One of a few words."""

    def check(option: str, value: Any) -> str:
        word = text(option, value)
        if word not in choices:
            known = "one of " + ", ".join(repr(choice) for choice in choices)
            hint = did_you_mean(word, choices)
            raise OptionError(
                f"{option} does not know {word!r}",
                fix=f"{hint} ({known})" if hint else f"use {known}",
            )
        return word

    return check


def instance_of(kind: type) -> Check:
    """Any value of that type."""

    def check(option: str, value: Any) -> Any:
        if not isinstance(value, kind):
            raise OptionTypeError(
                f"{option} takes {_a(kind.__name__)}, not {value!r} ({type(value).__name__})",
                fix=f"pass {_a(kind.__name__)}",
            )
        return value

    return check


def proportions(option: str, value: Any) -> dict[str, float]:
    """A share of memory for each of some IPUs, such as `{"IPU0": 0.3}`."""
    example = f'write {option}({{"IPU0": 0.6}})'
    checked: dict[str, float] = {}
    for ipu, share in instance_of(dict)(option, value).items():
        if not isinstance(ipu, str) or not ipu.startswith("IPU"):
            raise OptionRangeError(f"{option}: key {ipu!r} does not start with 'IPU'", fix=example)
        if isinstance(share, bool) or not isinstance(share, Real):
            raise OptionTypeError(f"{option}: {ipu} takes a number, not {share!r}", fix=example)
        checked[ipu] = float(share)
        if not 0.0 <= checked[ipu] <= 1.0:
            raise OptionError(f"{option}: {ipu} must be from 0 to 1, not {share!r}", fix=example)
    return checked
