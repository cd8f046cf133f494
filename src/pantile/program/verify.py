"""Check that a Program keeps its rules; a broken one is shown with the lines round the fault.

    placeholders   first, one per `Input`, of its spec
    body           operators of torch, none of which writes to a tensor; each reads what is above it
    epilogue       `copy_` onto placeholders, each at most once, of equal shape and dtype
    output         last, one value per `Output`, of its spec

Note [Nothing reads what was written]
The epilogue runs when the body is done, but a view made in the body still sees the memory of its
placeholder. So neither a returned value nor a later write may be a written placeholder or a view
of one: it would get the new value where the graph means the old one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NoReturn

import torch
from torch import fx
from torch._ops import OpOverload

from pantile.errors import ProgramError
from pantile.program.aliases import aliased_placeholders
from pantile.program.print_text import describe_node, fetch, render
from pantile.program.program import WRITE, Program
from pantile.program.spec import Input, Output, Spec, TensorSpec
from pantile.program.targets import name_of
from pantile.program.window import show_window

_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


class _FaultError(Exception):
    """What is wrong, and at which node."""

    def __init__(self, node: fx.Node | None, message: str) -> None:
        super().__init__(message)
        self.node = node
        self.message = message


def verify(program: Program) -> None:
    """Raise a ProgramError that shows the faulty lines if the Program breaks a rule."""
    try:
        _check_order(program.graph)
        _check_inputs(program)
        for node in program.graph.nodes:
            _check_node(node)
            _check_shape(node)
        _check_attributes(program.graph, {**program.constants, **program.subgraphs})
        _check_writes(program)
        _check_outputs(program)
        _check_guards(program)
        for name, module in program.subgraphs.items():
            _check_subgraph(name, module)
    except _FaultError as fault:
        _report(program, fault)


def _report(program: Program, fault: _FaultError) -> NoReturn:
    lines = render(program)
    at = next((i for i, line in enumerate(lines) if line.node and line.node is fault.node), 0)
    window = show_window([line.text for line in lines], at)
    raise ProgramError(f"program {program.name!r}: {fault.message}\n{window}") from None


def _check_order(graph: fx.Graph) -> None:
    seen: set[fx.Node] = set()
    names: set[str] = set()
    ended = body = False
    for node in graph.nodes:
        if ended:
            raise _FaultError(node, f"%{node.name} stands behind the output")
        if node.name in names:
            raise _FaultError(node, f"two nodes have the name %{node.name}")
        if node.op == "placeholder" and body:
            raise _FaultError(node, f"the placeholder %{node.name} stands behind the body")
        late = [source for source in node.all_input_nodes if source not in seen]
        if late:
            raise _FaultError(node, f"%{node.name} reads %{late[0].name}, which is not above it")
        ended = node.op == "output"
        body = node.op != "placeholder"
        seen.add(node)
        names.add(node.name)
    if not ended:
        raise _FaultError(None, "the graph has no output")


def _check_inputs(program: Program) -> None:
    placeholders = program.placeholders
    if len(placeholders) != len(program.inputs):
        last = placeholders[-1] if placeholders else None
        counts = f"{len(placeholders)} placeholders for {len(program.inputs)} inputs"
        raise _FaultError(last, f"the graph has {counts}")
    for node, entry in zip(placeholders, program.inputs, strict=True):
        if not _fits(node, entry.spec):
            got = describe_node(node)
            raise _FaultError(node, f"%{node.name} is {got}; input {entry.name!r} is {entry.spec}")
    _check_unique(placeholders, program.inputs, "inputs")


def _check_unique(nodes: Iterable[fx.Node], entries: Sequence[Input | Output], what: str) -> None:
    counts = Counter((entry.kind, entry.name) for entry in entries)
    for node, entry in zip(nodes, entries, strict=True):
        if counts[entry.kind, entry.name] > 1:
            raise _FaultError(node, f"several {entry.kind.value} {what} are called {entry.name!r}")


def _fits(value: object, spec: Spec) -> bool:
    held = value.meta.get("val") if isinstance(value, fx.Node) else value
    if isinstance(spec, TensorSpec):
        return isinstance(held, torch.Tensor) and TensorSpec.of(held) == spec
    return isinstance(held, _NUMBERS)


def _check_node(node: fx.Node) -> None:
    if node.op in ("call_method", "call_module"):
        raise _FaultError(node, f"%{node.name} is a {node.op}; a body calls functions only")
    if node.op != "call_function":
        return
    if name_of(node.target) is None:
        raise _FaultError(node, f"%{node.name} calls {node.target}, which is no operator of torch")
    is_mutable = isinstance(node.target, OpOverload) and node.target._schema.is_mutable
    if is_mutable and node.target is not WRITE:
        raise _FaultError(node, f"%{node.name} writes in place: {node.target}")


def _check_shape(node: fx.Node) -> None:
    if node.op == "call_function" and "val" not in node.meta:
        raise _FaultError(node, f"%{node.name} has no shape: its meta has no 'val'")


def _check_attributes(graph: fx.Graph, attributes: Mapping[str, object]) -> None:
    unread = dict(attributes)
    for node in graph.nodes:
        if node.op != "get_attr":
            continue
        value = attributes.get(str(node.target))
        if value is None:
            raise _FaultError(node, f"there is no constant or subgraph {node.target!r}")
        if isinstance(value, torch.Tensor) and not _fits(node, TensorSpec.of(value)):
            got, want = describe_node(node), TensorSpec.of(value)
            raise _FaultError(
                node, f"%{node.name} is {got}; the constant {node.target!r} is {want}"
            )
        unread.pop(str(node.target), None)
    if unread:
        raise _FaultError(None, f"nobody reads the constant or subgraph {next(iter(unread))!r}")


def _check_writes(program: Program) -> None:
    written: set[fx.Node] = set()
    aliases = aliased_placeholders(program.graph)
    for node in program.graph.nodes:
        if node.target is WRITE:
            target, value = _write_arguments(node)
            _check_not_written(node, [value], written, aliases)
            if target in written:
                raise _FaultError(node, f"%{target.name} is written twice")
            written.add(target)
        elif node.op == "output":
            _check_not_written(node, node.all_input_nodes, written, aliases)
        elif written:
            raise _FaultError(node, f"%{node.name} stands behind the first write")


def _write_arguments(node: fx.Node) -> tuple[fx.Node, fx.Node]:
    if len(node.args) != 2 or node.kwargs:
        raise _FaultError(node, f"%{node.name} needs two arguments: a placeholder and a value")
    target, value = node.args
    if not isinstance(target, fx.Node) or target.op != "placeholder":
        raise _FaultError(node, f"%{node.name} writes to something that is not a placeholder")
    if not isinstance(value, fx.Node):
        raise _FaultError(node, f"%{node.name} writes {value}, which is not a node")
    old, new = target.meta.get("val"), value.meta.get("val")
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        raise _FaultError(node, f"%{node.name} writes something that is not a tensor")
    if TensorSpec.of(old) != TensorSpec.of(new):
        spec = TensorSpec.of(new)
        raise _FaultError(
            node, f"%{target.name} is {TensorSpec.of(old)}, and is written with {spec}"
        )
    if node.users:
        raise _FaultError(node, f"%{node.name} is a write and has no value, but is read")
    return target, value


def _check_not_written(
    node: fx.Node,
    values: Iterable[fx.Node],
    written: set[fx.Node],
    aliases: Mapping[fx.Node, frozenset[fx.Node]],
) -> None:
    for value in values:
        for source in sorted(aliases.get(value, frozenset()) & written, key=lambda n: n.name):
            view = "" if value is source else f" through %{value.name}"
            raise _FaultError(node, f"%{source.name} is read{view} after it was written")


def _check_outputs(program: Program) -> None:
    output = next(reversed(program.graph.nodes))
    values = output.args[0]
    if not isinstance(values, (list, tuple)):
        raise _FaultError(output, "the graph returns a single value, not a tuple of them")
    if len(values) != len(program.outputs):
        counts = f"{len(values)} values for {len(program.outputs)} outputs"
        raise _FaultError(output, f"the graph returns {counts}")
    for value, entry in zip(values, program.outputs, strict=True):
        if not _fits(value, entry.spec):
            got = describe_node(value) if isinstance(value, fx.Node) else repr(value)
            node = value if isinstance(value, fx.Node) else output
            raise _FaultError(node, f"output {entry.name!r} is {entry.spec}, but gets {got}")
    _check_unique([output] * len(values), program.outputs, "outputs")


def _check_guards(program: Program) -> None:
    names = {node.name for node in program.graph.nodes if node.op != "output"}
    for guard in program.guards:
        if guard.node not in names:
            raise _FaultError(None, f"a guard asks for %{guard.node}, which does not exist")


def _check_subgraph(name: str, module: fx.GraphModule) -> None:
    graph = module.graph
    _check_order(graph)
    for node in graph.nodes:
        _check_node(node)
        if node.users:  # torch's tracer of branches leaves nodes behind that nobody reads
            _check_shape(node)
        if node.target is WRITE:
            raise _FaultError(node, f"%{node.name} writes in place inside the subgraph {name!r}")
    attributes = dict(_attributes(module))
    _check_attributes(graph, attributes)
    for key, value in attributes.items():
        if isinstance(value, fx.GraphModule):
            _check_subgraph(f"{name}.{key}", value)


def _attributes(module: fx.GraphModule) -> Iterator[tuple[str, object]]:
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = fetch(module, str(node.target))
            if value is not None:
                yield str(node.target), value
