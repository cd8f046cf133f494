"""The pieces a pipeline can be cut between: runs of ops of one module, with their backward.

    forward    embed │ layer.0 │ layer.1 │ … │ head, loss
    backward   embed │ layer.0 │ layer.1 │ … │ head, loss      the same pieces, in reverse
               unit 0   unit 1    unit 2        unit n

A unit knows its cycles, its parameters, what it keeps for its backward, and how many bytes cross
the border behind it. Time and memory of any split into stages are sums over its units.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from pantile.machine.cost import CostSettings, OpCost, program_costs
from pantile.machine.records import OpRecord, ProgramRecord
from pantile.machine.vectors import PACES, vector_cycles

_FINEST_SHARE = 0.015
"""A module with a larger share of all cycles is taken apart into its children."""


@dataclass(frozen=True)
class Parameter:
    """One tensor of weights. Rows of a `lookup` table get gradients without a dense tensor."""

    name: str
    elements: int
    bytes: int
    trained: bool = True
    lookup: bool = False


@dataclass(frozen=True)
class Unit:
    """One piece. Cycles are calibrated and for one micro-batch; bytes are of the whole IPU."""

    name: str
    source: str = ""
    stage: int = 0
    forward: float = 0.0
    backward: float = 0.0
    accumulate: float = 0.0
    parameters: tuple[Parameter, ...] = ()
    buffer_bytes: int = 0
    input_bytes: int = 0
    border_bytes: int = 0
    saved_bytes: int = 0
    peak_bytes: int = 0
    temporary_bytes: int = 0
    flops: float = 0.0
    ops: tuple[int, ...] = field(default=(), repr=False)
    distinct_ops: int = 0

    @property
    def group(self) -> str:
        """The layer it is part of: the path up to its first number."""
        parts = self.name.split(".")
        number = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts))
        return ".".join(parts[: number + 1])

    def named(self, name: str) -> Unit:
        """The same work with weights of its own, for a layer that repeats."""
        own = tuple(replace(p, name=f"{name}/{p.name}") for p in self.parameters)
        return replace(self, name=name, parameters=own)


def units_of(
    record: ProgramRecord,
    settings: CostSettings,
    *,
    costs: Sequence[OpCost] | None = None,
    finest: float = _FINEST_SHARE,
) -> list[Unit]:
    """The units of a program, in the order in which forward runs them."""
    priced = costs if costs is not None else program_costs(record, settings)
    return _Grouping(record, settings, priced, finest).units()


class _Grouping:
    def __init__(
        self,
        record: ProgramRecord,
        settings: CostSettings,
        costs: Sequence[OpCost],
        finest: float,
    ) -> None:
        self._record = record
        self._settings = settings
        self._costs = costs
        self._open = _opened(record, costs, finest)
        self._members: list[list[OpRecord]] = []
        self._names: list[str] = []
        self._free = regenerable(record)
        self._unit_of: dict[int, int] = {}

    def units(self) -> list[Unit]:
        self._group_forward()
        self._group_backward()
        borders, saved = self._crossings()
        return [
            self._unit(index, borders[index], saved[index]) for index in range(len(self._members))
        ]

    def _key(self, module: str) -> str:
        """The part of a module's path that names a unit; empty for ops of a module in parts."""
        parts = module.split(".") if module else []
        for length in range(1, len(parts) + 1):
            path = ".".join(parts[:length])
            if path not in self._open:
                return path
        return ""

    def _group_forward(self) -> None:
        stage = None
        for op in self._record.ops:
            if op.phase != "forward":
                continue
            key = self._key(op.module)
            fresh = not self._members or (key and key != self._names[-1])
            if fresh or op.stage != stage:
                self._members.append([])
                self._names.append(key or (self._names[-1] if self._names else "start"))
            elif key and not self._names[-1]:
                self._names[-1] = key
            stage = op.stage
            self._members[-1].append(op)
            self._unit_of[op.id] = len(self._members) - 1

    def _group_backward(self) -> None:
        """By the line and module of the forward op; sums of gradients follow their neighbours."""
        known: dict[tuple[str, str, int], int] = {}
        for op in self._record.ops:
            if op.phase == "forward":
                known[op.module, op.source, op.stage] = self._unit_of[op.id]
        latest = len(self._members) - 1
        for op in self._record.ops:
            if op.phase == "forward":
                continue
            latest = known.get((op.module, op.source, op.stage), latest)
            self._members[latest].append(op)
            self._unit_of[op.id] = latest

    def _crossings(self) -> tuple[list[int], list[int]]:
        """Bytes that pass each border going forward, and bytes each unit keeps for backward."""
        tensors, count = self._record.tensors, len(self._members)
        maker: dict[int, int] = {}
        last_use: dict[int, int] = {}
        kept: set[int] = set()
        for op in self._record.ops:
            unit = self._unit_of[op.id]
            for tensor in op.inputs:
                root = tensors[tensor].of
                if root not in maker:
                    continue
                if op.phase == "forward":
                    last_use[root] = max(last_use.get(root, 0), unit)
                else:
                    kept.add(root)
            if op.phase == "forward":
                maker.update(dict.fromkeys(op.outputs, unit))
        borders, saved = [0] * count, [0] * count
        for root, unit in maker.items():
            if root in self._free:
                continue
            for border in range(unit, last_use.get(root, unit)):
                borders[border] += tensors[root].bytes
            if root in kept:
                saved[unit] += tensors[root].bytes
        return borders, saved

    def _unit(self, index: int, border: int, saved: int) -> Unit:
        ops = self._members[index]
        cycles = {"forward": 0.0, "backward": 0.0, "update": 0.0}
        for op in ops:
            cycles[op.phase] += self._costs[op.id].cycles
        parameters, buffers, arguments = self._state(ops)
        first = ops[0]
        chip = self._settings.chip
        alive, temporary = self._peak(ops)
        pace = PACES["accumulate"]
        summing = sum(
            vector_cycles(chip, pace, p.elements, 2 if p.bytes == 2 * p.elements else 4)
            + chip.step_cycles
            for p in parameters
            if p.trained
        )
        return Unit(
            self._names[index] or "forward",
            first.source,
            first.stage,
            cycles["forward"],
            cycles["backward"],
            summing * self._settings.calibration.general,
            parameters,
            buffers,
            arguments,
            border,
            saved,
            alive,
            temporary,
            sum(self._costs[op.id].flops for op in ops),
            tuple(op.id for op in ops),
            len({_shape_key(self._record, op) for op in ops}),
        )

    def _state(self, ops: Iterable[OpRecord]) -> tuple[tuple[Parameter, ...], int, int]:
        parameters: dict[int, Parameter] = {}
        others: dict[int, int] = {}
        arguments: dict[int, int] = {}
        for op in ops:
            for tensor in self._record.operands(op):
                root = self._record.tensors[tensor.of]
                if root.kind == "parameter":
                    known = parameters.get(root.id)
                    lookup = op.op == "embedding" or (known is not None and known.lookup)
                    parameters[root.id] = Parameter(
                        root.name, root.elements, root.bytes, lookup=lookup
                    )
                elif root.kind in ("buffer", "constant"):
                    others[root.id] = root.bytes
                elif root.kind == "argument" and op.phase == "forward":
                    arguments[root.id] = root.bytes
        return tuple(parameters.values()), sum(others.values()), sum(arguments.values())

    def _peak(self, ops: Sequence[OpRecord]) -> tuple[int, int]:
        """Bytes of values and of pieces where both together are most, forward and backward."""
        tiles = self._settings.chip.tiles
        return max(
            (
                (alive, self._costs[op].temporary_bytes * tiles)
                for op, alive in liveness(self._record, ops, self._free)
            ),
            key=sum,
            default=(0, 0),
        )


def regenerable(record: ProgramRecord) -> frozenset[int]:
    """Values drawn at random, or made of such alone: an IPU draws them again from the seed."""
    drawn: set[int] = set()
    for op in record.ops:
        made_of = [record.tensors[t].of for t in op.inputs]
        if op.op in _DRAWS or (made_of and op.op in _KEEPS and all(r in drawn for r in made_of)):
            drawn.update(op.outputs)
        elif op.op == "native_dropout" and len(op.outputs) > 1:
            drawn.add(op.outputs[1])
    return frozenset(drawn)


_DRAWS = frozenset({"bernoulli", "rand", "rand_like", "randn", "randn_like", "uniform"})
_KEEPS = frozenset({"div", "mul", "_to_copy", "lt", "gt", "ge", "le"})


def lifetimes(
    record: ProgramRecord, ops: Sequence[OpRecord], free: frozenset[int] = frozenset()
) -> dict[int, tuple[int, int]]:
    """For each value with memory of its own, the first and the last of these ops that needs it."""
    found: dict[int, tuple[int, int]] = {}
    for place, op in enumerate(ops):
        for tensor in (*op.inputs, *op.outputs):
            root = record.tensors[tensor].of
            if root not in free and record.tensors[root].kind == "value":
                found[root] = (found.get(root, (place, place))[0], place)
    return found


def liveness(
    record: ProgramRecord, ops: Sequence[OpRecord], free: frozenset[int] = frozenset()
) -> list[tuple[int, int]]:
    """At each op, the bytes of values that it or a later one of these ops needs."""
    change = [0] * (len(ops) + 1)
    for root, (first, last) in lifetimes(record, ops, free).items():
        change[first] += record.tensors[root].bytes
        change[last + 1] -= record.tensors[root].bytes
    return [(op.id, alive) for op, alive in zip(ops, accumulate(change[:-1]), strict=True)]


def _shape_key(record: ProgramRecord, op: OpRecord) -> tuple[object, ...]:
    return (op.op, tuple(t.shape for t in record.operands(op)))


def _opened(record: ProgramRecord, costs: Sequence[OpCost], finest: float) -> frozenset[str]:
    """The modules that are taken apart: dear ones, and all that contain one."""
    inclusive: dict[str, float] = defaultdict(float)
    children: dict[str, set[str]] = defaultdict(set)
    total = 0.0
    for op in record.ops:
        cycles = costs[op.id].cycles
        total += cycles
        parts = op.module.split(".") if op.module else []
        for length in range(1, len(parts) + 1):
            path = ".".join(parts[:length])
            inclusive[path] += cycles
            if length > 1:
                children[".".join(parts[: length - 1])].add(path)
    return frozenset(
        path
        for path, cycles in inclusive.items()
        if children[path] and cycles > finest * max(total, 1.0)
    )


def merge(units: Sequence[Unit], name: str) -> Unit:
    """Units that run one after the other as one."""
    parameters = {p.name: p for unit in units for p in unit.parameters}
    return Unit(
        name,
        units[0].source,
        units[0].stage,
        sum(unit.forward for unit in units),
        sum(unit.backward for unit in units),
        sum(unit.accumulate for unit in units),
        tuple(parameters.values()),
        sum(unit.buffer_bytes for unit in units),
        sum(unit.input_bytes for unit in units),
        units[-1].border_bytes,
        sum(unit.saved_bytes for unit in units),
        max(unit.peak_bytes for unit in units),
        max(unit.temporary_bytes for unit in units),
        sum(unit.flops for unit in units),
        tuple(op for unit in units for op in unit.ops),
        sum(unit.distinct_ops for unit in units),
    )
