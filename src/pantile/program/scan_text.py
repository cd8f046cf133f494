"""Read one line of the text form, left to right.

    write %w <- aten…      a `Scanner` gives out words, node names, values and shapes in turn

Nothing is evaluated: a value is a literal, a node, or a name that `find_target` knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from pantile.errors import ProgramError
from pantile.program.spec import CHECKPOINT, NodeTag, ScalarSpec, Spec, TensorSpec
from pantile.program.targets import find_target

_TOKEN = re.compile(
    r"""
    (?P<string>"(?:[^"\\]|\\.)*")
    |(?P<digest>sha256:[0-9a-f]{64}\b)
    |(?P<node>%[A-Za-z_]\w*)
    |(?P<float>-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|(?:inf|nan)\b))
    |(?P<integer>-?\d+)
    |(?P<name>[A-Za-z_][\w.]*)
    |(?P<mark>\.\.\.|->|<-|[()\[\]{},:=])
    |(?P<comment>\#.*)
    """,
    re.VERBOSE | re.ASCII,
)
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"]+')
_SPACE = re.compile(r"\s*")
_DEEPEST = 50
_N = TypeVar("_N", int, float)
_LITERALS: dict[str, object] = {"None": None, "True": True, "False": False}
_TORCH_VALUES = (torch.dtype, torch.layout, torch.memory_format)

UNKNOWN = object()
"""The value of a node that carries none."""


@dataclass(frozen=True)
class Token:
    """A word of the text, and what sort of word it is."""

    kind: str
    text: str


class Scanner:
    """The words of one line, and the values they spell."""

    def __init__(self, text: str) -> None:
        self._tokens, self.comment = _split(text)
        self._at = 0
        self._depth = 0

    @property
    def done(self) -> bool:
        """True if nothing but a comment is left."""
        return self._at == len(self._tokens)

    def peek(self) -> Token:
        """The next word, which stays where it is."""
        return Token("end", "the end of the line") if self.done else self._tokens[self._at]

    def take(self, kind: str) -> str:
        """The next word, which must be of that kind."""
        token = self.peek()
        if token.kind != kind:
            raise ProgramError(f"expected a {kind}, found {token.text}")
        self._at += 1
        return token.text

    def accept(self, text: str) -> bool:
        """True if the next word was this mark or name; it is consumed."""
        token = self.peek()
        found = token.kind in ("mark", "name") and token.text == text
        self._at += found
        return found

    def expect(self, text: str) -> None:
        """Consume this mark or name."""
        if not self.accept(text):
            raise ProgramError(f"expected {text!r}, found {self.peek().text}")

    def finish(self) -> None:
        """Nothing may be left."""
        if not self.done:
            raise ProgramError(f"unexpected {self.peek().text} at the end of the line")

    def node_name(self) -> str:
        """A `%name`, without its sign."""
        return self.take("node")[1:]

    def string(self) -> str:
        """A quoted string."""
        return unquote(self.take("string"))

    def integer(self) -> int:
        """A whole number."""
        return _number(int, self.take("integer"))

    def argument(self, nodes: Mapping[str, fx.Node]) -> tuple[str | None, Any]:
        """A value, and the name in front of it: `2` or `alpha=2`."""
        following = self._tokens[self._at + 1 : self._at + 2]
        if self.peek().kind == "name" and following == [Token("mark", "=")]:
            name = self.take("name")
            self.expect("=")
            return name, self.value(nodes)
        return None, self.value(nodes)

    def value(self, nodes: Mapping[str, fx.Node]) -> Any:
        """An argument: a literal, a container, a node, a dtype, an operator."""
        token = self.peek()
        match token.kind:
            case "node":
                return _find_node(self.node_name(), nodes)
            case "string":
                return self.string()
            case "integer":
                return self.integer()
            case "float":
                return _number(float, self.take("float"))
            case "name":
                return self._named_value(self.take("name"), nodes)
        return self._container(nodes)

    def _named_value(self, name: str, nodes: Mapping[str, fx.Node]) -> Any:
        if name in _LITERALS:
            return _LITERALS[name]
        build = _BUILDERS.get(name)
        if build is not None:
            self.expect("(")
            return build(self.sequence(")", lambda: self.value(nodes)))
        found = getattr(torch, name.removeprefix("torch."), None)
        if name.startswith("torch.") and isinstance(found, _TORCH_VALUES):
            return found
        return find_target(name)

    def _container(self, nodes: Mapping[str, fx.Node]) -> Any:
        if self.accept("..."):
            return ...
        if self.accept("("):
            return self._tuple(lambda: self.value(nodes))
        if self.accept("["):
            return self.sequence("]", lambda: self.value(nodes))
        if self.accept("{"):
            return dict(self.sequence("}", lambda: self._pair(nodes)))
        raise ProgramError(f"expected a value, found {self.peek().text}")

    def _pair(self, nodes: Mapping[str, fx.Node]) -> tuple[Any, Any]:
        if self.peek().kind not in ("string", "integer", "float"):
            raise ProgramError(f"expected a string or a number as key, found {self.peek().text}")
        key = self.value(nodes)
        self.expect(":")
        return key, self.value(nodes)

    def _tuple(self, entry: Callable[[], Any]) -> tuple[Any, ...]:
        entries = self.sequence(")", entry)
        if len(entries) == 1 and self._tokens[self._at - 2].text != ",":
            raise ProgramError("a tuple of one entry needs a comma: (x,)")
        return tuple(entries)

    def sequence(self, closing: str, entry: Callable[[], Any]) -> list[Any]:
        """Entries with commas between them, up to the closing bracket."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ProgramError(f"brackets are nested more than {_DEEPEST} deep")
        entries = []
        while not self.accept(closing):
            entries.append(entry())
            if not self.accept(","):
                self.expect(closing)
                break
        self._depth -= 1
        return entries

    def spec(self) -> Spec:
        """The spec of an input or output."""
        if self.accept("scalar"):
            return ScalarSpec()
        dtype = self._dtype()
        return TensorSpec(self._shape(dtype), dtype)

    def description(self, mode: FakeTensorMode) -> Any:
        """A fake value of the shape and dtype that is written here."""
        if self.accept("unknown"):
            return UNKNOWN
        if self.accept("none"):
            return None
        if self.accept("scalar"):
            return 0.0
        if self.accept("("):
            return self._tuple(lambda: self.description(mode))
        if self.accept("["):
            return self.sequence("]", lambda: self.description(mode))
        dtype = self._dtype()
        return _fake(mode, dtype, self._shape(dtype), self._strides())

    def _dtype(self) -> torch.dtype:
        name = self.take("name")
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise ProgramError(f"{name} is not a dtype")
        return dtype

    def _shape(self, dtype: torch.dtype) -> tuple[int, ...]:
        self.expect("[")
        shape = tuple(self.sequence("]", self.integer))
        if any(size < 0 for size in shape):
            raise ProgramError(f"a {dtype} tensor cannot have the shape {list(shape)}")
        return shape

    def _strides(self) -> tuple[int, ...] | None:
        return tuple(self.sequence("}", self.integer)) if self.accept("{") else None


def parse_tag(comment: str) -> NodeTag:
    """The tag in the comment behind a node: phase, stage, block, checkpoint, module, source."""
    phase, stage, *words = (*words_of(comment), *[""] * (2 - len(words_of(comment))))
    number = stage.removeprefix("stage=")
    block = words.pop(0).removeprefix("block=") if words and words[0].startswith("block=") else ""
    checkpoint = words[:1] == [CHECKPOINT]
    words = words[checkpoint:]
    if len(words) > 2 or not stage.startswith("stage=") or not number.isdecimal():
        raise ProgramError(
            f"cannot read the comment {comment!r}",
            fix="write # phase stage=0 module source, or leave it out",
        )
    module, source = (*words, "", "")[:2]
    return NodeTag(phase, _number(int, number), module, source, block, checkpoint)


def words_of(text: str) -> list[str]:
    """The words of a text, where a word with blanks in it is quoted."""
    words = (match.group() for match in _WORD.finditer(text))
    return [unquote(word) if word.startswith('"') else word for word in words]


def unquote(text: str) -> str:
    """The string that a quoted text stands for."""
    try:
        return str(json.loads(text))
    except ValueError as error:
        raise ProgramError(f"{text} is not a string: {error}") from error


def _split(text: str) -> tuple[list[Token], str]:
    tokens: list[Token] = []
    at = _skip_space(text, 0)
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise ProgramError(f"cannot read {text[at : at + 20]!r}")
        if match.lastgroup == "comment":
            return tokens, match.group()[1:].strip()
        tokens.append(Token(match.lastgroup, match.group()))
        at = _skip_space(text, match.end())
    return tokens, ""


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _find_node(name: str, nodes: Mapping[str, fx.Node]) -> fx.Node:
    if name not in nodes:
        raise ProgramError(f"%{name} is used before it is defined")
    return nodes[name]


def _number(kind: Callable[[str], _N], text: str) -> _N:
    try:
        return kind(text)
    except ValueError as error:  # more digits than Python reads
        raise ProgramError(f"cannot read the number {text[:20]}…") from error


def _fake(
    mode: FakeTensorMode,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
) -> torch.Tensor:
    try:
        with mode:
            if strides is None:
                return torch.empty(shape, dtype=dtype)
            return torch.empty_strided(shape, strides, dtype=dtype)
    except (RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise ProgramError(f"there is no {dtype} tensor of shape {list(shape)}: {error}") from error


def _slice(entries: list[Any]) -> slice:
    if len(entries) != 3:
        raise ProgramError("a slice has three entries: slice(start, stop, step)")
    return slice(*entries)


def _complex(entries: list[Any]) -> complex:
    if len(entries) != 2 or not all(isinstance(entry, float) for entry in entries):
        raise ProgramError("a complex number has two parts: complex(1.0, 0.0)")
    return complex(*entries)


def _device(entries: list[Any]) -> torch.device:
    try:
        return torch.device(*entries)
    except (RuntimeError, TypeError) as error:
        raise ProgramError(f"{entries} is not a device") from error


_BUILDERS: dict[str, Callable[[list[Any]], Any]] = {
    "slice": _slice,
    "complex": _complex,
    "device": _device,
}
