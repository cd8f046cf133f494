"""Cut a program into the pieces its stages run, with explicit edges between them.

    gradients                    0F      1F      1B      0B
    ─────────                    ──      ──      ──      ──
    %a = mm(%x, %w)              %a ───► edge
    %b = tanh(%a)         ->             %b ───► edge
    %c = tanh_backward(…)                        %c ───► edge
    %d = mm(%t, %c)                                      %d

Each piece is a Program. It reads state and arguments by the names the whole program has for them,
and other pieces by edges, which carry the names of the nodes. A recomputed stage has one more
piece, R: it computes again, from what enters the stage, what its backward reads.

Note [What is not computed again]
Random draws, effects, code that is not torch's own, and what reads state that the program writes: a
second run would give other values, or be seen. Their results are kept, as are checkpoints.

Note [When state is written]
A buffer is written by the last piece that reads it. If all that read and write it is one piece,
micro-batches can overlap: each piece takes them in order. Else `Split.ordered` says that they must
run one after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from pantile.passes.stage_places import stage_at, stage_places
from pantile.program.aliases import aliased_placeholders
from pantile.program.effects import has_effect, is_random
from pantile.program.program import WRITE, Program, tag_of
from pantile.program.spec import Input, InputKind, Output, OutputKind, ScalarSpec, Spec, TensorSpec
from pantile.program.verify import verify
from pantile.schedule.action import Kind

Key = tuple[Kind, int]
"""What a stage does: the kind of action, and the stage."""

_AGAIN = "__again"


@dataclass(frozen=True, eq=False)
class Piece:
    """What one stage does with one micro-batch.

    `state` holds the inputs of the whole program it reads, by their places; `edges` the names of
    the edges that follow them. `returns` holds the outputs of the whole program it computes, by
    their places; `sends` the edges that follow them.
    """

    key: Key
    program: Program
    state: tuple[int, ...]
    edges: tuple[str, ...]
    returns: tuple[int, ...]
    sends: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Split:
    """A program in pieces; `readers` says which pieces read each edge."""

    program: Program
    stages: int
    pieces: Mapping[Key, Piece]
    readers: Mapping[str, frozenset[Key]]
    ordered: str = ""

    def in_order(self, nodes: Collection[fx.Node]) -> bool:
        """Do the pieces, one after the other, run these nodes in the order of the program?"""
        rows = {name: i for i, p in enumerate(self.pieces.values()) for name in _names(p)}
        places = [rows[node.name] for node in self.program.graph.nodes if node in nodes]
        return places == sorted(places)

    def senders(self, piece: Piece) -> set[Key]:
        """The pieces whose edges a piece reads."""
        read = set(piece.edges)
        return {key for key, other in self.pieces.items() if read.intersection(other.sends)}

    def kept(self, stage: int) -> list[fx.Node]:
        """What a stage keeps of a micro-batch until its backward: arguments and activations.

        The last stage goes back at once and keeps nothing.
        """
        if stage == self.stages - 1:
            return []
        later = [p for (kind, s), p in self.pieces.items() if s == stage and kind != Kind.FORWARD]
        forward = self.pieces.get((Kind.FORWARD, stage))
        sent = set(forward.sends) if forward else set()
        names = {edge for piece in later for edge in piece.edges if edge in sent}
        read = {place for piece in later for place in piece.state}
        places = zip(self.program.placeholders, self.program.inputs, strict=True)
        fed = [
            node
            for i, (node, entry) in enumerate(places)
            if i in read and entry.kind is InputKind.ARGUMENT
        ]
        return fed + [node for node in self.program.graph.nodes if node.name in names]

    def after(self, stage: int) -> tuple[int, ...]:
        """The earlier stages this one reads from, or that read from it on the way back."""
        found = set()
        for (kind, reader), piece in self.pieces.items():
            for _, sender in self.senders(piece):
                if kind is Kind.FORWARD and reader == stage:
                    found.add(sender)
                elif kind is not Kind.FORWARD and sender == stage:
                    found.add(reader)
        return tuple(sorted(s for s in found if s < stage))


def split_stages(
    program: Program, stages: int, *, training: bool, recomputed: Collection[int] = ()
) -> Split:
    """The pieces of a program whose tags hold stages."""
    places = stage_places(program.graph, stages, training=training)
    writes = _Writes(program, places)
    rows: dict[Key, list[fx.Node]] = defaultdict(list)
    for node, place in places.items():
        rows[_key(place, stages)].append(node)
    for node, place in writes.places.items():
        rows[_key(place, stages)].append(node)
    again = {s: _again(program, s, stages, places, writes) for s in recomputed}
    for stage, nodes in again.items():
        if nodes:
            rows[Kind.RECOMPUTE, stage] = nodes
    builder = _Builder(program, stages, places, rows)
    pieces = builder.build()
    return Split(program, stages, pieces, builder.readers(pieces), writes.ordered(stages))


def _key(place: int, stages: int) -> Key:
    return (Kind.FORWARD if place < stages else Kind.BACKWARD, stage_at(place, stages))


class _Writes:
    """Where state is written, and who reads it before."""

    def __init__(self, program: Program, places: Mapping[fx.Node, int]) -> None:
        aliases = aliased_placeholders(program.graph)
        nodes = program.graph.find_nodes(op="call_function", target=WRITE)
        written = {node.args[0]: node for node in nodes}
        touched: dict[Any, set[int]] = {target: set() for target in written}
        self.reads_written: set[fx.Node] = set()
        for node, place in places.items():
            for source in node.all_input_nodes:
                for target in aliases.get(source, frozenset()) & written.keys():
                    touched[target].add(place)
                    self.reads_written.add(node)
        self.places: dict[fx.Node, int] = {}
        for target, node in written.items():
            value = node.args[1]
            place = max({*touched[target], places.get(value, 0)})
            self.places[node] = place
            touched[target].add(place)
            # A write that reads what a later one overwrites must not come after it.
            for other in aliases.get(value, frozenset()) & written.keys():
                touched[other].add(place)
        entries = dict(zip(program.placeholders, program.inputs, strict=True))
        self._spread = [(entries[t].name, found) for t, found in touched.items() if len(found) > 1]

    def ordered(self, stages: int) -> str:
        """Why micro-batches cannot overlap; empty if they can."""
        if not self._spread:
            return ""
        name, places = self._spread[0]
        first, last = (_key(place, stages) for place in (min(places), max(places)))
        return (
            f"{name!r} is read by {_named(first)} and written by {_named(last)}, so a micro-batch "
            "has to wait for the one before it"
        )


def _named(key: Key) -> str:
    return f"the {key[0].name.lower()} of stage {key[1]}"


def _again(
    program: Program, stage: int, stages: int, places: Mapping[fx.Node, int], writes: _Writes
) -> list[fx.Node]:
    """What a stage computes again for its backward, in the order of the program."""
    back = 2 * stages - 1 - stage
    own = {node for node, place in places.items() if place == stage}
    fixed = {node for node in own if _is_fixed(node, program, writes)}
    pending = [
        source
        for node, place in places.items()
        if place == back
        for source in node.all_input_nodes
        if source in own
    ]
    wanted: set[fx.Node] = set()
    while pending:
        node = pending.pop()
        if node in own and node not in wanted and not _is_kept(node, fixed):
            wanted.add(node)
            pending.extend(node.all_input_nodes)
    return [node for node in places if node in wanted]


def _is_fixed(node: fx.Node, program: Program, writes: _Writes) -> bool:
    return (
        tag_of(node).checkpoint
        or node in writes.reads_written
        or _is_opaque(node)
        or is_random(node, program.subgraphs)
        or has_effect(node, program.subgraphs)
    )


def _is_opaque(node: fx.Node) -> bool:
    """Code that is not torch's own: a function of the user might count its calls."""
    return getattr(node.target, "namespace", "aten") not in ("aten", "prims")


def _is_kept(node: fx.Node, fixed: set[fx.Node]) -> bool:
    """A value that is kept, or a part of one."""
    return node in fixed or (_is_part(node) and node.all_input_nodes[0] in fixed)


def _is_part(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


class _Builder:
    """Writes the pieces."""

    def __init__(
        self,
        program: Program,
        stages: int,
        places: Mapping[fx.Node, int],
        rows: Mapping[Key, list[fx.Node]],
    ) -> None:
        self._program = program
        self._stages = stages
        self._places = places
        self._rows = dict(rows)
        self._inputs = {node: i for i, node in enumerate(program.placeholders)}
        self._returned: dict[Key, list[int]] = defaultdict(list)
        for index, value in enumerate(program.returned):
            place = places.get(value, 0) if isinstance(value, fx.Node) else 0
            key = _key(place, stages)
            self._returned[key].append(index)
            self._rows.setdefault(key, [])
        self._sent: dict[Key, dict[str, fx.Node]] = defaultdict(dict)
        self._read: dict[Key, dict[fx.Node, str]] = {}
        for key in self._rows:
            self._read[key] = self._edges_of(key)

    def _edges_of(self, key: Key) -> dict[fx.Node, str]:
        """The values a piece reads from others, with their edges; note who sends them."""
        own = set(self._rows[key])
        edges: dict[fx.Node, str] = {}
        for node in self._rows[key]:
            for source in node.all_input_nodes:
                if source in self._places and source not in own:
                    sender, name = self._source(key, source)
                    edges[source] = name
                    self._sent[sender][name] = source
        return edges

    def _source(self, reader: Key, value: fx.Node) -> tuple[Key, str]:
        kind, stage = reader
        again: Key = (Kind.RECOMPUTE, stage)
        if kind is Kind.BACKWARD and again in self._rows and value in self._rows[again]:
            return again, value.name + _AGAIN
        return _key(self._places[value], self._stages), value.name

    def build(self) -> dict[Key, Piece]:
        """All pieces, in the order in which a micro-batch meets them."""
        order = sorted(self._rows, key=self._time)
        return {key: self._piece(key) for key in order}

    def _time(self, key: Key) -> tuple[int, bool]:
        kind, stage = key
        return (stage if kind is Kind.FORWARD else 2 * self._stages - stage, kind is Kind.BACKWARD)

    def readers(self, pieces: Mapping[Key, Piece]) -> dict[str, frozenset[Key]]:
        """Which pieces read each edge."""
        found: dict[str, set[Key]] = defaultdict(set)
        for key, piece in pieces.items():
            for name in piece.edges:
                found[name].add(key)
        return {name: frozenset(keys) for name, keys in found.items()}

    def _piece(self, key: Key) -> Piece:
        nodes, edges, sent = self._rows[key], self._read[key], self._sent[key]
        returns = self._returned[key]
        used = {source for node in nodes for source in node.all_input_nodes}
        used.update(v for i in returns if isinstance(v := self._program.returned[i], fx.Node))
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        state = [node for node in self._inputs if node in used]
        for node in state:
            copies[node] = graph.node_copy(node)
        for node, name in edges.items():
            copies[node] = graph.placeholder(name)
            copies[node].meta = {"val": node.meta.get("val")}
        for node in self._program.graph.find_nodes(op="get_attr"):
            if node in used:
                copies[node] = graph.node_copy(node)
        for node in nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        values = [fx.map_arg(self._program.returned[i], copies.__getitem__) for i in returns]
        graph.output((*values, *(copies[node] for node in sent.values())))
        program = self._as_program(key, graph, state, edges, sent)
        return Piece(
            key,
            program,
            tuple(self._inputs[node] for node in state),
            tuple(edges.values()),
            tuple(returns),
            tuple(sent),
        )

    def _as_program(
        self,
        key: Key,
        graph: fx.Graph,
        state: list[fx.Node],
        edges: Mapping[fx.Node, str],
        sent: Mapping[str, fx.Node],
    ) -> Program:
        whole = self._program
        attributes = {str(node.target) for node in graph.find_nodes(op="get_attr")}
        program = Program(
            f"{whole.name}-{key[1]}{key[0].value}",
            graph,
            (
                *(whole.inputs[self._inputs[node]] for node in state),
                *(Input(name, InputKind.EDGE, _spec(node)) for node, name in edges.items()),
            ),
            (
                *(whole.outputs[i] for i in self._returned[key]),
                *(Output(name, OutputKind.EDGE, _spec(node)) for name, node in sent.items()),
            ),
            {n: v for n, v in whole.constants.items() if n in attributes},
            {n: v for n, v in whole.subgraphs.items() if n in attributes},
        )
        verify(program)
        return program


def _names(piece: Piece) -> Collection[str]:
    """The nodes a piece is the first to compute."""
    if piece.key[0] is Kind.RECOMPUTE:
        return ()
    return [node.name for node in piece.program.graph.nodes if node.op == "call_function"]


def _spec(node: fx.Node) -> Spec:
    value = node.meta.get("val")
    return TensorSpec.of(value) if isinstance(value, torch.Tensor) else ScalarSpec()
