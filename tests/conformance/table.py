"""The conformance table: rows read from `rows/*.toml`, and how each is checked against the code.

    names.toml        a public name                    looked up
    signatures.toml   parameters and defaults          compared with inspect.signature
    enums.toml        members and values               compared
    options.toml      what is stored, and by whom      read, set, read again
    errors.toml       a mistake, class and words       made
    behaviour.toml    what an op does                  run
    limits.toml       lifted here, kept by strict      run in both modes
    environment.toml  a variable                       set, then run

A check returns nothing and raises what is wrong. Every row is executed; there is no row that is
only text.
"""

from __future__ import annotations

import builtins
import enum
import inspect
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.conformance.names_in_rows import mode_of, namespace

import poptorch

ROWS = Path(__file__).parent / "rows"


@dataclass(frozen=True)
class Row:
    """One line of the table. `check(folder)` raises if the code is not as the row says."""

    table: str
    group: str
    title: str
    details: tuple[str, ...]
    check: Callable[[str], None]

    @property
    def key(self) -> str:
        """A name for the row."""
        return f"{self.table}: {self.group}: {self.title}"


class Differs(AssertionError):
    """The code is not as a row says."""


def all_rows() -> list[Row]:
    """Every row of every table, in the order of the page."""
    makers = (_names, _signatures, _enums, _options, _errors, _behaviour, _limits, _environment)
    return [row for make in makers for row in make()]


def _read(table: str) -> Any:
    return tomllib.loads((ROWS / f"{table}.toml").read_text())


def find(path: str) -> Any:
    """The object under a dotted path below `poptorch`."""
    found: Any = poptorch
    for part in path.split("."):
        found = getattr(found, part)
    return found


# Names, signatures, enums


def _names() -> Iterator[Row]:
    for entry in _read("names")["name"]:
        for name in entry["names"].split():

            def check(folder: str, name: str = name) -> None:
                find(name)

            yield Row("Names", entry["group"], name, (), check)


def _signatures() -> Iterator[Row]:
    for group, entries in _read("signatures").items():
        for name, wanted in entries.items():

            def check(folder: str, name: str = name, wanted: str = wanted) -> None:
                found = signature_text(find(name), like=wanted)
                if found != wanted:
                    raise Differs(f"{name}{found}, not {name}{wanted}")

            yield Row("Signatures", group, name, (wanted,), check)


def signature_text(callable_: Any, like: str) -> str:
    """Parameters and defaults without annotations, and without keyword-only parameters of ours."""
    shown = []
    starred = False
    for parameter in inspect.signature(callable_).parameters.values():
        keyword_only = parameter.kind is parameter.KEYWORD_ONLY
        if keyword_only and f"{parameter.name}=" not in like:
            continue
        if keyword_only and not starred:
            shown.append("*")
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        shown.append(_parameter_text(parameter))
    return f"({', '.join(shown)})"


def _parameter_text(parameter: inspect.Parameter) -> str:
    if parameter.default is not parameter.empty:
        return f"{parameter.name}={_default_text(parameter.default)}"
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    return stars.get(parameter.kind, "") + parameter.name


def _default_text(value: Any) -> str:
    return f"{type(value).__name__}.{value.name}" if isinstance(value, enum.Enum) else repr(value)


def _enums() -> Iterator[Row]:
    for name, entry in _read("enums").items():
        members = entry["members"]

        def check(folder: str, name: str = name, entry: Any = entry) -> None:
            found = find(f"enums.{name}")
            values = {member.name: member.value for member in found}
            if values != entry["members"]:
                raise Differs(f"{name} has {values}")
            if not issubclass(found, getattr(builtins, entry["base"])):
                raise Differs(f"{name} is no {entry['base']}")

        shown = ", ".join(f"{key} {value!r}" for key, value in members.items())
        yield Row("Enums", "enums", name, (shown,), check)


# Rows with code


def run(code: str, names: dict[str, Any]) -> Any:
    """Run the code of a row; what it gives is the variable `result`, or its only expression."""
    torch.manual_seed(0)
    exec(compile(code, "<row>", "exec"), names)
    return names.get("result")


def _modes(entry: dict[str, Any], options: tuple[str, ...]) -> tuple[str, ...]:
    mode = entry.get("mode", "both")
    return options if mode == "both" else (mode,)


def options_of(mode: str) -> poptorch.Options:
    """Fresh options of a mode."""
    return poptorch.Options().strict(mode == "strict")


def _options() -> Iterator[Row]:
    for entry in _read("options")["option"]:

        def check(folder: str, entry: dict[str, str] = entry) -> None:
            names = namespace(folder)
            opts = names["opts"] = poptorch.Options()
            _holds(entry["default"], names)
            given = eval(entry["call"], names)
            _holds(entry["then"], names)
            own = [opts, *opts._groups().values()]
            returned = "its own object" if any(given is part for part in own) else "a copy"
            returned = "None" if given is None else returned
            if returned != entry.get("returns", "its own object"):
                raise Differs(f"{entry['call']} returned {returned}")

        group = entry["call"].split("(")[0].removeprefix("opts.").rpartition(".")[0] or "Options"
        call = entry["call"].removeprefix("opts.")
        yield Row("Options", group, call, (entry["default"], entry["then"]), check)


def _holds(expression: str, names: dict[str, Any]) -> None:
    if not eval(expression, names):
        raise Differs(f"{expression} does not hold")


def _errors() -> Iterator[Row]:
    for entry in _read("errors")["error"]:
        modes = _modes(entry, ("default", "strict"))

        def check(folder: str, entry: Any = entry, modes: tuple[str, ...] = modes) -> None:
            for mode in modes:
                options = options_of(mode)
                with mode_of(options):
                    _raises(entry, namespace(folder, options))

        said = entry.get("says", "").removeprefix("^").replace(".*", " … ").replace("\n", " ")
        mode = "strict" if modes == ("strict",) else ""
        details = (entry["raises"], said, mode)
        yield Row("Errors", modes[-1], entry["when"], details, check)


def _raises(entry: dict[str, str], names: dict[str, Any]) -> None:
    kind = eval(entry["raises"], names)
    try:
        run(entry["code"], names)
    except kind as error:
        _says(str(error), entry.get("says", ""))
        if entry.get("says_not", "\0") in getattr(error, "message", str(error)):
            raise Differs(f"the message speaks of {entry['says_not']}: {error}") from error
        return
    except Exception as error:
        found = f"{type(error).__mro__[:-2]}: {error}"
        raise Differs(f"raised {found}, not {entry['raises']}") from error
    raise Differs(f"nothing was raised, not {entry['raises']}")


def _says(text: str, wanted: str) -> None:
    """`wanted` is fragments in order, with `.*` between them; `^` is the start of the text."""
    if wanted.startswith("^") and not text.startswith(wanted[1:].split(".*")[0]):
        raise Differs(f"the message does not begin with {wanted[1:]!r}: {text}")
    place = 0
    for fragment in wanted.removeprefix("^").split(".*"):
        place = text.find(fragment, place)
        if place < 0:
            raise Differs(f"the message lacks {fragment!r}: {text}")


def _behaviour() -> Iterator[Row]:
    for entry in _read("behaviour")["behaviour"]:
        modes = _modes(entry, ("default", "strict"))

        def check(folder: str, entry: Any = entry, modes: tuple[str, ...] = modes) -> None:
            for mode in modes:
                options = options_of(mode)
                with mode_of(options):
                    run(entry["code"], namespace(folder, options))

        shown = "both" if len(modes) == 2 else modes[0]
        yield Row("Behaviour", shown, entry["what"], (shown,), check)


def _limits() -> Iterator[Row]:
    for entry in _read("limits")["limit"]:

        def check(folder: str, entry: Any = entry) -> None:
            result = run(entry["code"], namespace(folder, options_of("default")))
            if "default" in entry and result != eval(entry["default"]):
                raise Differs(f"by default it gives {result!r}, not {entry['default']}")
            names = namespace(folder, options_of("strict"))
            if "raises" in entry:
                _raises(entry, names)
            elif (strict := run(entry["code"], names)) != eval(entry["strict"]):
                raise Differs(f"in strict mode it gives {strict!r}, not {entry['strict']}")

        strict = entry.get("says") or entry.get("raises") or entry["strict"]
        yield Row("Limits", "limits", entry["what"], (entry.get("default", "runs"), strict), check)


def _environment() -> Iterator[Row]:
    for entry in _read("environment")["environment"]:

        def check(folder: str, entry: Any = entry) -> None:
            value = entry["value"].replace("{folder}", folder)
            (_in_an_interpreter if entry.get("fresh") else _with_variable)(entry, value, folder)

        title = f"{entry['variable']}={entry['value'] or '(absent)'}"
        yield Row("Environment", "environment", title, (entry["does"],), check)


def _with_variable(entry: dict[str, str], value: str, folder: str) -> None:
    before = os.environ.get(entry["variable"])
    os.environ[entry["variable"]] = value
    try:
        run(entry["code"], namespace(folder))
    finally:
        del os.environ[entry["variable"]]
        if before is not None:
            os.environ[entry["variable"]] = before


def _in_an_interpreter(entry: dict[str, str], value: str, folder: str) -> None:
    variables = {key: kept for key, kept in os.environ.items() if key != entry["variable"]}
    if value:
        variables[entry["variable"]] = value
    code = f"import poptorch; folder = {folder!r}\n{entry['code']}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True
    )
    if done.returncode:
        raise Differs(done.stderr)
