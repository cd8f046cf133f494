"""Join the gradients of one micro-batch and the weight update into one Program.

    gradients                        update                         fused
    param %w                         param %w                       param %w, arg %x, hyper %lr
    arg   %x                         grad  %g                       %dw  = mm(...)
    %dw   = mm(...)             +    hyper %lr                 ->   %new = sub(%w, mul(%dw, %lr))
    return %loss, %dw "w"            %new = sub(%w, mul(%g, %lr))   write %w <- %new
                                     write %w <- %new               return %loss

It is right when one micro-batch makes one update: nothing is accumulated, nothing is reduced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import fx

from pantile.errors import ProgramError
from pantile.program.aliases import aliased_placeholders
from pantile.program.nodes import copied_node
from pantile.program.program import WRITE, Program
from pantile.program.spec import Guard, Input, InputKind, Output, OutputKind

_Key = tuple[InputKind, str]
_Returned = list[tuple[fx.Node, Output]]
_Fed = Mapping[str, tuple[fx.Node, Output]] | None


def fuse(gradients: Program, update: Program) -> Program:
    """The Program `fused`: `gradients`, then `update` on what they return.

    Inputs of the same kind and name become one. An input that both programs write gets one write,
    the update's, and the update reads what the gradients would have written.
    """
    fusion = _Fusion()
    returned = fusion.inline(gradients, None)
    fed = {entry.name: pair for pair in returned if _is_gradient(entry := pair[1])}
    results = [pair for pair in returned if not _is_gradient(pair[1])]
    return fusion.finish([*results, *fusion.inline(update, fed)])


def _is_gradient(entry: Output) -> bool:
    return entry.kind is OutputKind.GRADIENT


@dataclass(frozen=True)
class _Write:
    """A write of one of the programs: the value in the fused graph, and the node it came from."""

    value: fx.Node
    origin: fx.Node


@dataclass
class _Fusion:
    """The fused graph while it grows."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    inputs: dict[_Key, Input] = field(default_factory=dict)
    placeholders: dict[_Key, fx.Node] = field(default_factory=dict)
    writes: dict[_Key, _Write] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    subgraphs: dict[str, fx.GraphModule] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)

    def inline(self, program: Program, fed: _Fed) -> _Returned:
        """Append a program, its gradients `fed` from elsewhere; what it returns is returned."""
        placeholders = program.placeholders
        moved: dict[fx.Node, fx.Node] = {}
        for node, entry in zip(placeholders, program.inputs, strict=True):
            moved[node] = self._feed(node, entry, fed)
        targets = self._take_attributes(program)
        keys = {node: _key(e) for node, e in zip(placeholders, program.inputs, strict=True)}
        for node in program.graph.nodes:
            if node.target is WRITE:
                self.writes[keys[node.args[0]]] = _Write(moved[node.args[1]], node)
            elif node.op not in ("placeholder", "output"):
                moved[node] = copied_node(self.graph, node, moved.__getitem__)
                moved[node].target = targets[node.target] if node.op == "get_attr" else node.target
        by_name = {node.name: node for node in moved}
        self.guards += [Guard(moved[by_name[g.node]].name, g.taken) for g in program.guards]
        values = fx.map_arg(tuple(program.returned), moved.__getitem__)
        return list(zip(values, program.outputs, strict=True))

    def _feed(self, node: fx.Node, entry: Input, fed: _Fed) -> fx.Node:
        key = _key(entry)
        if entry.kind is InputKind.GRADIENT and fed is not None:
            return _find_gradient(entry, fed)
        if key in self.inputs:
            _check_specs(entry, self.inputs[key])
            return self.writes[key].value if key in self.writes else self.placeholders[key]
        return self._add_placeholder(node, entry)

    def _add_placeholder(self, node: fx.Node, entry: Input) -> fx.Node:
        last = next(reversed(self.placeholders.values()), None)
        place = self.graph.inserting_after(last) if last else self.graph.inserting_before()
        with place:
            added = self.graph.node_copy(node)
        self.inputs[_key(entry)] = entry
        self.placeholders[_key(entry)] = added
        return added

    def _take_attributes(self, program: Program) -> dict[str, str]:
        """Take over constants and subgraphs; return the new name of each."""
        names: dict[str, str] = {}
        for name, tensor in program.constants.items():
            names[name] = self._free_name(name, tensor)
            self.constants[names[name]] = tensor
        for name, module in program.subgraphs.items():
            names[name] = self._free_name(name, module)
            self.subgraphs[names[name]] = module
        return names

    def _free_name(self, name: str, value: object) -> str:
        taken: dict[str, object] = {**self.constants, **self.subgraphs}
        candidates = (name if number == 0 else f"{name}_{number}" for number in count())
        return next(c for c in candidates if taken.get(c, value) is value)

    def finish(self, results: _Returned) -> Program:
        """Add writes and output."""
        detach = _Detacher(self.graph, {self.placeholders[key] for key in self.writes})
        returned = tuple(detach(value) for value, _ in results)
        values = [detach(w.value, self.placeholders[key]) for key, w in self.writes.items()]
        for (key, write), value in zip(self.writes.items(), values, strict=True):
            args = (self.placeholders[key], value)
            added = self.graph.create_node("call_function", WRITE, args, name=write.origin.name)
            added.meta = dict(write.origin.meta)
        self.graph.output(returned)
        self.graph.lint()
        return Program(
            name="fused",
            graph=self.graph,
            inputs=tuple(self.inputs.values()),
            outputs=tuple(entry for _, entry in results),
            constants=self.constants,
            subgraphs=self.subgraphs,
            guards=tuple(self.guards),
        )


class _Detacher:
    """Gives a value its own memory if it shares that of an input which will be written.

    See Note [Nothing reads what was written]: a model that returns a weight returns the weight of
    before the update.
    """

    def __init__(self, graph: fx.Graph, written: set[fx.Node]) -> None:
        self._graph = graph
        self._written = written
        self._aliases = aliased_placeholders(graph)
        self._clones: dict[fx.Node, fx.Node] = {}

    def __call__(self, value: fx.Node, target: fx.Node | None = None) -> fx.Node:
        """The value, or a copy of it; `target` is the input that it will be written to."""
        shared = self._aliases.get(value, frozenset()) & (self._written - {target})
        if not isinstance(value, fx.Node) or not shared:
            return value
        if value not in self._clones:
            op = torch.ops.aten.clone.default
            clone = self._graph.create_node("call_function", op, (value,), name="clone")
            clone.meta = {**value.meta, "val": value.meta["val"].clone()}
            self._clones[value] = clone
        return self._clones[value]


def _find_gradient(entry: Input, fed: Mapping[str, tuple[fx.Node, Output]]) -> fx.Node:
    if entry.name not in fed:
        raise ProgramError(
            f"the update reads the gradient of {entry.name!r}, which nobody computes",
            fix="capture both programs from the same model and optimizer",
        )
    value, source = fed[entry.name]
    _check_specs(entry, source)
    return value


def _key(entry: Input) -> _Key:
    return entry.kind, entry.name


def _check_specs(wanted: Input, found: Input | Output) -> None:
    if wanted.spec != found.spec:
        raise ProgramError(
            f"the {wanted.kind.value} {wanted.name!r} is {found.spec} in the gradients, "
            f"and {wanted.spec} in the update",
            fix="capture both programs from the same model and optimizer",
        )
