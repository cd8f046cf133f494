"""What each op of a program costs on one IPU: compute, exchange and syncs, in cycles.

    OpRecord ── kind of work ──► product     products.py, convolutions.py: a plan over the tiles
                                 everything  vectors.py: a pace for each vector of the busiest tile
                                 else
    OpCost = compute + exchange + steps * (sync + latency), then * calibration of its class

The calibration factor of a class is one number for all models and is shown wherever cycles are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

from pantile.machine.calibration import Calibration
from pantile.machine.convolutions import (
    Convolution,
    convolution_cycles,
    weight_gradient_cycles,
)
from pantile.machine.op_classes import ALIASES, CLASS_OF_PACE, FREE, GROUPS
from pantile.machine.products import Product, Spread, spread
from pantile.machine.records import BYTES, OpRecord, ProgramRecord, TensorRecord
from pantile.machine.targets import Chip
from pantile.machine.vectors import (
    PACES,
    Pace,
    atom_bytes,
    copy_cycles,
    exchange_cycles,
    gather_cycles,
    scatter_cycles,
    vector_cycles,
)


@dataclass(frozen=True)
class CostSettings:
    """The chip, and what the user may set for it."""

    chip: Chip
    proportions: tuple[float, ...] = (0.6,)
    partials: str = "float16"
    calibration: Calibration = field(default_factory=Calibration)

    def proportion(self, stage: int) -> float:
        """The available memory proportion of a stage; the last one given holds for the rest."""
        return self.proportions[min(stage, len(self.proportions) - 1)]


@dataclass(frozen=True)
class _Work:
    """What some kind of work takes, in cycles of the chip."""

    kind: str
    compute: float = 0.0
    exchange: float = 0.0
    steps: int = 0
    flops: float = 0.0
    temporary_bytes: int = 0
    grid: str = ""
    note: str = ""

    def __add__(self, other: _Work) -> _Work:
        return _Work(
            self.kind,
            self.compute + other.compute,
            self.exchange + other.exchange,
            self.steps + other.steps,
            self.flops + other.flops,
            max(self.temporary_bytes, other.temporary_bytes),
            self.grid or other.grid,
            self.note or other.note,
        )


@dataclass(frozen=True)
class OpCost(_Work):
    """The work of one op, with the steps it waits for and the factor of its kind."""

    op: int = 0
    sync: float = 0.0
    factor: float = 1.0

    @property
    def cycles(self) -> float:
        """Calibrated."""
        return self.factor * self.raw_cycles

    @property
    def raw_cycles(self) -> float:
        """As the formulas give it."""
        return self.compute + self.exchange + self.sync


def program_costs(record: ProgramRecord, settings: CostSettings) -> list[OpCost]:
    """The cost of every op, in order."""
    model = _Model(record, settings)
    return [model.cost(op) for op in record.ops]


class _Model:
    def __init__(self, record: ProgramRecord, settings: CostSettings) -> None:
        self._record = record
        self._settings = settings
        self._chip = settings.chip
        self._memory: dict[tuple[object, ...], _Work] = {}

    def cost(self, op: OpRecord) -> OpCost:
        work = self._work(op)
        factor = self._settings.calibration.factor(work.kind)
        sync = work.steps * self._chip.step_cycles
        return OpCost(**vars(work), op=op.id, sync=sync, factor=factor)

    def _work(self, op: OpRecord) -> _Work:
        operands, results = self._record.operands(op), self._record.results(op)
        if not operands or op.op in FREE:
            return _Work("none")
        key = (
            op.op,
            op.phase,
            self._settings.proportion(op.stage),
            tuple((t.shape, t.dtype, t.strides, self._is_parameter(t)) for t in operands),
            tuple((t.shape, t.dtype) for t in results),
            str(op.attributes),
        )
        if key not in self._memory:
            rule = _RULES.get(op.op, _Model._elementwise)
            self._memory[key] = rule(self, op, operands, results)
        return self._memory[key]

    def _is_parameter(self, tensor: TensorRecord) -> bool:
        return self._record.tensors[tensor.of].kind == "parameter"

    # Products

    def _of_spread(self, kind: str, way: Spread, flops: float) -> _Work:
        note = "" if way.within_memory else "needs more than the available memory proportion"
        return _Work(
            kind,
            way.compute + way.reduce,
            way.exchange,
            way.steps,
            flops,
            way.temporary_bytes,
            way.grid,
            note,
        )

    def product(self, op: OpRecord, product: Product) -> _Work:
        way = spread(self._chip, product, self._settings.proportion(op.stage))
        return self._of_spread("matmul", way, product.flops)

    def _matmul(self, op: OpRecord, ins: list[TensorRecord], outs: list[TensorRecord]) -> _Work:
        left, right = ins[-2], ins[-1]
        groups = prod(left.shape[:-2])
        rows, inner, columns = left.shape[-2], left.shape[-1], right.shape[-1]
        dtype, partials = self._types(left)
        work = self.product(op, Product(groups, rows, inner, columns, dtype, partials))
        for operand in (left, right):
            work += self._arranged(op, operand)
        if len(ins) == 3:
            work += self._pass("scalar", outs[0])
        return work

    def _arranged(self, op: OpRecord, operand: TensorRecord) -> _Work:
        """Bringing an operand into the order of the matrix unit, where it is not made in it.

        Going forward, the product before has written the groups of 16 the next one wants. Going
        backward, one operand of each product is transposed. Rows of odd length always move.
        """
        atom = atom_bytes(operand.shape[-1] * BYTES.get(operand.dtype, 4))
        backward = op.phase == "backward"
        transposed = len(operand.strides) > 1 and operand.strides[-1] != 1
        if atom == 8 and not (backward and transposed):
            return _Work("copy")
        return self._copy(operand, atom)

    def _types(self, tensor: TensorRecord) -> tuple[str, str]:
        if tensor.dtype in ("float16", "bfloat16"):
            return "float16", self._settings.partials
        if tensor.dtype.startswith("float8"):
            return ("float8" if self._chip.has_fp8 else "float16"), "float16"
        return "float32", "float32"

    def _convolution(
        self, op: OpRecord, ins: list[TensorRecord], outs: list[TensorRecord]
    ) -> _Work:
        conv = self._shape_of(op, ins[0], ins[1], outs[0])
        way = convolution_cycles(self._chip, conv, self._settings.proportion(op.stage))
        work = self._of_spread("conv", way, conv.flops)
        return work + self._pass("scalar", outs[0]) if len(ins) > 2 else work

    def _convolution_backward(
        self, op: OpRecord, ins: list[TensorRecord], outs: list[TensorRecord]
    ) -> _Work:
        gradient, image, weight = ins[0], ins[1], ins[2]
        conv = self._shape_of(op, image, weight, gradient)
        proportion = self._settings.proportion(op.stage)
        mask = op.attributes.get("mask", [True, True, False])
        work = _Work("conv")
        if mask[0]:
            pixels = image.shape[0] * prod(image.shape[2:])
            way = convolution_cycles(self._chip, conv.backward(pixels), proportion)
            work += self._of_spread("conv", way, conv.flops) + self._copy(weight, 8)
        if mask[1]:
            way = weight_gradient_cycles(self._chip, conv, proportion)
            work += self._of_spread("conv", way, conv.flops)
            # Both operands are transposed: pixels become the inner dimension.
            work += self._copy(image, 8) + self._copy(gradient, 8)
        if mask[2]:
            work += self._reduction(gradient)
        return work

    def _shape_of(
        self, op: OpRecord, image: TensorRecord, weight: TensorRecord, out: TensorRecord
    ) -> Convolution:
        dtype, partials = self._types(image)
        channels_in, channels_out, result = image.shape[1], out.shape[1], out
        if op.attributes.get("transposed"):
            channels_in, channels_out, result = channels_out, channels_in, image
        return Convolution(
            result.shape[0] * prod(result.shape[2:]),
            result.shape[-1],
            channels_in,
            channels_out,
            tuple(weight.shape[2:]),
            tuple(op.attributes.get("stride") or (1,)),
            int(op.attributes.get("groups", 1)),
            dtype,
            partials,
        )

    def _attention(self, op: OpRecord, ins: list[TensorRecord], outs: list[TensorRecord]) -> _Work:
        """Scores are materialised: the vendor's library had no fused attention."""
        query, key = (ins[0], ins[1]) if "backward" not in op.op else (ins[1], ins[2])
        groups, rows, depth = prod(query.shape[:-2]), query.shape[-2], query.shape[-1]
        columns = key.shape[-2]
        dtype, partials = self._types(query)
        scores = TensorRecord(-1, "scores", (groups, rows, columns), query.dtype)
        passes = 2 if "backward" in op.op else 1
        first = Product(groups, rows, depth, columns, dtype, partials)
        second = Product(groups, rows, columns, depth, dtype, partials)
        work = _Work("matmul")
        for product in (first, second):
            for _ in range(passes):
                work += self.product(op, product)
        atom = atom_bytes(columns * BYTES.get(query.dtype, 4))
        moves = 2 * passes + (passes - 1)
        for _ in range(moves):
            work += self._copy(scores, atom)
        name = "softmax_backward" if passes == 2 else "softmax"
        return work + self._pass(name, scores)

    def _recurrent(self, op: OpRecord, ins: list[TensorRecord], outs: list[TensorRecord]) -> _Work:
        """One product for all inputs, then one for each step, which waits for the step before."""
        sequence, own, gates = ins[0], ins[1], ins[2].shape[0]
        steps, batch = sequence.shape[0], sequence.shape[1]
        inside, hidden = own.shape[-1], ins[2].shape[-1]
        dtype, partials = self._types(sequence)
        first = Product(1, steps * batch, inside, gates, dtype, partials)
        each = Product(1, batch, hidden, gates, dtype, partials)
        step = self.product(op, each)
        for name in ("sigmoid", "tanh", "mul", "add", "mul"):
            step += self._pass(name, TensorRecord(-1, "gates", (batch, gates), sequence.dtype))
        again = 2 if "backward" in op.op else 1
        work = self.product(op, first)
        return _Work(
            "matmul",
            again * (work.compute + steps * step.compute),
            again * (work.exchange + steps * step.exchange),
            again * (work.steps + steps * step.steps),
            again * (work.flops + steps * step.flops),
            max(work.temporary_bytes, step.temporary_bytes),
            work.grid,
            "steps of a recurrent layer wait for each other",
        )

    # Everything else

    def _pass(self, name: str, tensor: TensorRecord, *, moved: float = 0.0) -> _Work:
        pace = PACES[name]
        width = BYTES.get(tensor.dtype, 4)
        compute = vector_cycles(self._chip, pace, tensor.elements, width)
        kind = CLASS_OF_PACE.get(name, "vector")
        return _Work(kind, compute, exchange_cycles(self._chip, moved), pace.steps)

    def _copy(self, tensor: TensorRecord, atom: int) -> _Work:
        note = (
            f"rows of {tensor.shape[-1]} are copied {atom} bytes at a time: a multiple of "
            f"{8 // BYTES.get(tensor.dtype, 4)} is up to 12 times faster"
            if atom < 8 and tensor.elements > 4096
            else ""
        )
        compute = copy_cycles(self._chip, tensor.bytes, atom)
        moved = exchange_cycles(self._chip, tensor.bytes)
        return _Work("copy", compute, moved, 1, note=note)

    def _reduction(self, tensor: TensorRecord) -> _Work:
        return self._pass("reduce", tensor)

    def _elementwise(
        self, op: OpRecord, ins: list[TensorRecord], outs: list[TensorRecord]
    ) -> _Work:
        if not outs:
            return _Work("none")
        out = max(outs, key=lambda t: t.elements)
        full = [t for t in ins if t.elements == out.elements and t.elements > 1]
        if out.dtype in ("int64", "int32", "int16", "int8", "uint8", "bool"):
            return self._pass("integer", out)
        name = op.op if op.op in PACES else ALIASES.get(op.op, "other")
        if name in ("add", "sub", "mul", "rsub", "div") and len(full) < 2:
            return self._pass("scalar", out)
        # Operands of a sum lie on tiles as their makers left them: one has to move.
        moved = full[1].bytes if len(full) > 1 and name in ("add", "sub") else 0
        return self._pass(name, out, moved=moved)

    def _cast(self, op: OpRecord, ins: list[TensorRecord], outs: list[TensorRecord]) -> _Work:
        if ins[0].dtype == outs[0].dtype:
            return self._clone(op, ins, outs)
        return self._pass("cast", outs[0])

    def _clone(self, op: OpRecord, ins: list[TensorRecord], outs: list[TensorRecord]) -> _Work:
        out = outs[0]
        if out.elements < 64:
            return _Work("none")
        rows = [t.shape[-1] for t in (ins[0], out) if t.shape]
        width = BYTES.get(out.dtype, 4)
        return self._copy(out, min(atom_bytes(row * width) for row in rows or [1]))

    def _softmax(self, op: OpRecord, ins: list[TensorRecord], outs: list[TensorRecord]) -> _Work:
        """Rows must be whole on a tile; the product before left them in pieces."""
        out = outs[0]
        name = "softmax_backward" if "backward" in op.op else "softmax"
        atom = atom_bytes(out.shape[-1] * BYTES.get(out.dtype, 4)) if out.shape else 8
        return self._pass(name, out) + self._copy(out, atom)

    def _norm(self, op: OpRecord, ins: list[TensorRecord], outs: list[TensorRecord]) -> _Work:
        name = "norm_backward" if "backward" in op.op else "norm"
        if "no_training" in op.op:
            name = "norm_inference"
        largest = max(ins, key=lambda t: t.elements)
        return self._pass(name, largest)

    def _reduce(self, op: OpRecord, ins: list[TensorRecord], outs: list[TensorRecord]) -> _Work:
        work = self._reduction(ins[0])
        return work + self._pass("other", ins[0]) if op.op in ("var", "var_mean") else work

    def _pool(self, op: OpRecord, ins: list[TensorRecord], outs: list[TensorRecord]) -> _Work:
        largest = max(*ins, *outs, key=lambda t: t.elements)
        smallest = min((t for t in (*ins, *outs) if t.elements > 1), key=lambda t: t.elements)
        kernel = prod(op.attributes.get("kernel") or [2, 2])
        backward = "backward" in op.op
        pace = Pace(2.0 * kernel + 4, 2.0 * kernel + 4, 6 * 50)
        width = BYTES.get(largest.dtype, 4)
        compute = vector_cycles(self._chip, pace, smallest.elements, width)
        moved = exchange_cycles(self._chip, largest.bytes)
        return _Work("vector", compute * (2 if backward else 1), moved, 1)

    def _gather(self, op: OpRecord, ins: list[TensorRecord], outs: list[TensorRecord]) -> _Work:
        out = outs[0]
        slice_elements = out.shape[-1] if len(out.shape) > 1 else 1
        rows = out.elements // max(1, slice_elements)
        width = BYTES.get(out.dtype, 4)
        compute = gather_cycles(self._chip, rows, slice_elements, width)
        return _Work("gather", compute, exchange_cycles(self._chip, 2 * out.bytes), 2)

    def _scatter(self, op: OpRecord, ins: list[TensorRecord], outs: list[TensorRecord]) -> _Work:
        values = max(ins, key=lambda t: t.elements)
        table = outs[0]
        slice_elements = table.shape[-1] if len(table.shape) > 1 else 1
        rows = values.elements // max(1, slice_elements)
        width = BYTES.get(values.dtype, 4)
        compute = scatter_cycles(self._chip, rows, slice_elements, width)
        moved = exchange_cycles(self._chip, 2 * values.bytes)
        return _Work("gather", compute, moved, 2) + self._pass("fill", table)


Rule = Callable[[_Model, OpRecord, list[TensorRecord], list[TensorRecord]], _Work]

_OF_GROUP: Mapping[str, Rule] = {
    "matmul": _Model._matmul,
    "convolution": _Model._convolution,
    "convolution backward": _Model._convolution_backward,
    "attention": _Model._attention,
    "recurrent": _Model._recurrent,
    "cast": _Model._cast,
    "copy": _Model._clone,
    "softmax": _Model._softmax,
    "norm": _Model._norm,
    "reduction": _Model._reduce,
    "pool": _Model._pool,
    "gather": _Model._gather,
    "scatter": _Model._scatter,
}
_RULES = {name: _OF_GROUP[group] for group, names in GROUPS.items() for name in names}
