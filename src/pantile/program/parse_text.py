"""Read the text form of a Program back.

    text  ──lines──►  Scanner  ──words──►  Block: graph, inputs, outputs, constants
                                             └── Block of each `graph … end` inside it

Large constants are not in the text: it names their digests, and the caller brings the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from pantile.errors import ProgramError
from pantile.program.digest import digest_of
from pantile.program.print_text import KEYWORDS
from pantile.program.program import WRITE, Program
from pantile.program.scan_text import UNKNOWN, Scanner, parse_tag, words_of
from pantile.program.spec import Guard, Input, Output, OutputKind, ScalarSpec, TensorSpec
from pantile.program.targets import find_target
from pantile.program.window import show_window

_KINDS = {word: kind for kind, word in KEYWORDS.items()}


@dataclass
class _Block:
    """What has been read of a program or of one of its subgraphs."""

    name: str
    graph: fx.Graph = field(default_factory=fx.Graph)
    nodes: dict[str, fx.Node] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    subgraphs: dict[str, fx.GraphModule] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    returned: list[Any] = field(default_factory=list)
    closed: bool = False


def parse_program(text: str, constants: Mapping[str, torch.Tensor] | None = None) -> Program:
    """The Program that a text form describes.

    `constants` holds the tensors the text refers to by digest, as `constants_of` collects them.
    """
    parser = _Parser(dict(constants or {}))
    lines = text.splitlines()
    for index, line in enumerate(lines):
        try:
            parser.read(line)
        except ProgramError as error:
            raise _place(error, lines, index) from error
    try:
        return parser.finish()
    except ProgramError as error:
        raise _place(error, lines, len(lines) - 1) from error


def _place(error: ProgramError, lines: list[str], index: int) -> ProgramError:
    window = show_window(lines, index)
    return ProgramError(f"line {index + 1}: {error.message}\n{window}", fix=error.fix)


class _Parser:
    """Reads line after line; the innermost open block is the last of the stack."""

    def __init__(self, constants: Mapping[str, torch.Tensor]) -> None:
        self._constants = constants
        self._mode = FakeTensorMode()
        self._blocks: list[_Block] = []

    def read(self, line: str) -> None:
        if not self._blocks:
            self._begin(line)
            return
        scan = Scanner(line)
        if scan.done:
            return
        if scan.peek().kind == "node":
            self._read_call(scan)
        else:
            self._read_keyword(scan)
        scan.finish()

    def finish(self) -> Program:
        if len(self._blocks) != 1:
            missing = "end" if self._blocks else "program"
            raise ProgramError(f"the text ends without {missing!r}")
        block = self._blocks[0]
        block.graph.output(tuple(block.returned))
        return Program(
            name=block.name,
            graph=block.graph,
            inputs=tuple(block.inputs),
            outputs=tuple(block.outputs),
            constants=block.constants,
            subgraphs=block.subgraphs,
            guards=tuple(block.guards),
        )

    def _begin(self, line: str) -> None:
        words = words_of(line)
        if not words or words[0].startswith("#"):
            return
        if words[0] != "program" or len(words) != 2:
            raise ProgramError("a text form begins with 'program <name>'")
        self._blocks.append(_Block(words[1]))

    def _read_keyword(self, scan: Scanner) -> None:
        word = scan.take("name")
        if word in _KINDS:
            self._read_input(scan, word)
            return
        readers = {
            "input": self._read_inner_input,
            "const": self._read_constant,
            "graph": self._read_graph,
            "end": self._read_end,
            "write": self._read_write,
            "return": self._read_return,
            "guard": self._read_guard,
        }
        if word not in readers:
            raise ProgramError(f"no line begins with {word!r}")
        readers[word](scan)

    @property
    def _block(self) -> _Block:
        return self._blocks[-1]

    @property
    def _is_outermost(self) -> bool:
        return len(self._blocks) == 1

    def _read_input(self, scan: Scanner, word: str) -> None:
        self._must_be_outermost(word)
        name = scan.node_name()
        entry = Input(scan.string(), _KINDS[word], scan.spec())
        target = scan.string() if scan.accept("=") else name
        value = scan.description(self._mode) if scan.accept("->") else self._value_of(entry)
        self._block.inputs.append(entry)
        self._add("placeholder", target, name=name, value=value)

    def _value_of(self, entry: Input) -> Any:
        match entry.spec:
            case ScalarSpec():
                return 0.0
            case TensorSpec():
                return Scanner(str(entry.spec)).description(self._mode)

    def _read_inner_input(self, scan: Scanner) -> None:
        if self._is_outermost:
            raise ProgramError(f"an input of a program begins with one of {', '.join(_KINDS)}")
        name, value = scan.node_name(), scan.description(self._mode)
        target = scan.string() if scan.accept("=") else name
        self._add("placeholder", target, name=name, value=value)

    def _read_call(self, scan: Scanner) -> None:
        name = scan.node_name()
        scan.expect("=")
        word = scan.take("name")
        if word == "get" and scan.peek().kind == "string":
            added = self._add("get_attr", scan.string(), name=name, value=UNKNOWN)
        else:
            target = find_target(word)
            args, kwargs = self._read_arguments(scan)
            added = self._add("call_function", target, args, kwargs, name=name, value=UNKNOWN)
        if scan.accept("->"):
            self._set_value(added, scan.description(self._mode))
        self._set_tag(added, scan)

    def _read_arguments(self, scan: Scanner) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        scan.expect("(")
        for key, value in scan.sequence(")", lambda: scan.argument(self._block.nodes)):
            if key is None and kwargs:
                raise ProgramError("a positional argument follows a named one")
            if key in kwargs:
                raise ProgramError(f"the argument {key!r} is given twice")
            if key is None:
                args.append(value)
            else:
                kwargs[key] = value
        return tuple(args), kwargs

    def _read_constant(self, scan: Scanner) -> None:
        name, described = scan.string(), scan.description(self._mode)
        if not isinstance(described, torch.Tensor):
            raise ProgramError(f"the constant {name!r} is not a tensor")
        is_digest = scan.peek().kind == "digest"
        tensor = (
            self._find_constant(scan.take("digest"), described)
            if is_digest
            else _build_constant(scan.value({}), described)
        )
        self._define(self._block.constants, name, tensor)

    def _find_constant(self, digest: str, described: torch.Tensor) -> torch.Tensor:
        tensor = self._constants.get(digest)
        if tensor is None:
            raise ProgramError(
                f"the constant {digest} is missing",
                fix="pass it in `constants`, as constants_of(program) returns them",
            )
        if digest_of(tensor) != digest or TensorSpec.of(tensor) != TensorSpec.of(described):
            raise ProgramError(f"the constant given for {digest} is another one")
        return tensor if tensor.stride() == described.stride() else _restride(tensor, described)

    def _define(self, table: dict[str, Any], name: str, value: object) -> None:
        if name in self._block.constants or name in self._block.subgraphs:
            raise ProgramError(f"{name!r} is defined twice")
        table[name] = value

    def _read_graph(self, scan: Scanner) -> None:
        self._blocks.append(_Block(scan.string()))

    def _read_end(self, scan: Scanner) -> None:
        if self._is_outermost:
            raise ProgramError("'end' without 'graph'")
        block = self._blocks.pop()
        if not block.closed:
            raise ProgramError(f"the graph {block.name!r} returns nothing")
        attributes: dict[str, Any] = {**block.constants, **block.subgraphs}
        wanted = [str(node.target) for node in block.graph.nodes if node.op == "get_attr"]
        for name in wanted:
            if name not in attributes:
                raise ProgramError(f"the graph {block.name!r} has no constant or graph {name!r}")
        self._define(self._block.subgraphs, block.name, fx.GraphModule(attributes, block.graph))

    def _read_write(self, scan: Scanner) -> None:
        nodes = self._block.nodes
        target = scan.value(nodes)
        scan.expect("<-")
        value = scan.value(nodes)
        scan.expect("as")
        if not isinstance(target, fx.Node) or target.op != "placeholder":
            raise ProgramError("only an input can be written")
        written = target.meta.get("val", UNKNOWN)
        name = scan.node_name()
        added = self._add("call_function", WRITE, (target, value), name=name, value=written)
        self._set_tag(added, scan)

    def _read_return(self, scan: Scanner) -> None:
        value = scan.value(self._block.nodes)
        if not self._is_outermost:
            if self._block.closed:
                raise ProgramError(f"the graph {self._block.name!r} returns twice")
            self._block.graph.output(value)
            self._block.closed = True
            return
        self._block.closed = True
        name, word = scan.string(), scan.take("name")
        kinds = {kind.value: kind for kind in OutputKind}
        if word not in kinds:
            raise ProgramError(f"{word!r} is not a kind of output", fix=f"one of {list(kinds)}")
        self._block.returned.append(value)
        self._block.outputs.append(Output(name, kinds[word], scan.spec()))

    def _read_guard(self, scan: Scanner) -> None:
        self._must_be_outermost("guard")
        name, word = scan.node_name(), scan.take("name")
        if word not in ("taken", "refused"):
            raise ProgramError(f"a guard is 'taken' or 'refused', not {word!r}")
        self._block.guards.append(Guard(name, word == "taken"))

    def _must_be_outermost(self, word: str) -> None:
        if not self._is_outermost:
            raise ProgramError(f"{word!r} cannot be inside a graph")

    def _add(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        name: str,
        value: Any,
    ) -> fx.Node:
        block = self._block
        if name in block.nodes:
            raise ProgramError(f"%{name} is defined twice")
        if block.closed:
            raise ProgramError(f"%{name} stands behind 'return'")
        node = block.graph.create_node(op, target, args, kwargs, name=name)
        if node.name != name:
            raise ProgramError(f"%{name} cannot be the name of a node; %{node.name} could")
        block.nodes[name] = node
        self._set_value(node, value)
        return node

    def _set_value(self, node: fx.Node, value: object) -> None:
        if value is not UNKNOWN:
            node.meta["val"] = value

    def _set_tag(self, node: fx.Node, scan: Scanner) -> None:
        if scan.comment:
            node.meta["tag"] = parse_tag(scan.comment)


def _build_constant(entries: object, described: torch.Tensor) -> torch.Tensor:
    if not isinstance(entries, list) or len(entries) != described.numel():
        raise ProgramError(f"expected a list of {described.numel()} numbers")
    try:
        return torch.tensor(entries, dtype=described.dtype).reshape(described.shape)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise ProgramError(f"the numbers do not fit {described.dtype}: {error}") from error


def _restride(tensor: torch.Tensor, described: torch.Tensor) -> torch.Tensor:
    strided = torch.empty_strided(described.shape, described.stride(), dtype=tensor.dtype)
    return strided.copy_(tensor)
