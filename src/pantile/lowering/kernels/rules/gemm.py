"""Matrix products, single and in batches, with what follows computed tile by tile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels.build import has_tiles
from pantile.lowering.kernels.emission import ACC, Store, decoded, epilogue, stores_of, written_by
from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.index import Axis, index_of
from pantile.lowering.kernels.memory import Place, Pointer
from pantile.lowering.kernels.operand import Operand, stride_of, strided
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.radix import Radix
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.triangles import Triangle
from pantile.lowering.kernels.types import HALVES, dtype_of, in_float, shape_of
from pantile.lowering.kernels.writer import Writer

aten = torch.ops.aten

_FEWEST_ROWS = 4
"""Of a product with a packed operand: fewer are as fast where it lies, if it comes from memory."""
_OFTEN, _VERY_OFTEN = 8, 16
"""Products that read an input, for which it is packed once; the second for few rows. From the
second cache, a row is multiplied with 512 x 128 numbers in 1.0 us if packed, else in 1.6."""

_FEWEST_OF_TRIANGLE = 32
"""Of a smaller matrix, tiles leave little out."""
_AHEAD = 4
"""So many results are fetched, as the template can."""

_ADDS = frozenset({aten.addmm.default, aten.baddbmm.default})
PRODUCTS = (aten.mm.default, aten.bmm.default, *_ADDS)


def _factors(node: fx.Node) -> list[fx.Node]:
    first = 1 if node.target in _ADDS else 0
    return list(node.args[first : first + 2])  # type: ignore[arg-type]


class Gemm(Family):
    """Tiles in registers; see templates/gemm.h."""

    def check(self, node: fx.Node) -> None:
        """Only what is summed in float; no factors of the sum."""
        if not in_float(dtype_of(node), *map(dtype_of, _factors(node))):
            raise Refused(f"products of {dtype_of(node)}")
        if any(node.kwargs.get(name, 1) != 1 for name in ("alpha", "beta")):
            raise Refused("a product with alpha or beta")

    def operands(self, node: fx.Node) -> list[fx.Node]:
        """The two factors."""
        return _factors(node)

    def takes(self, anchor: fx.Node, radix: Radix) -> bool:
        """Columns, which are the lanes, are not cut."""
        return len(radix[-1]) <= 1

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernel."""
        _Product(kernel, writer).write()


class _Product:
    def __init__(self, kernel: Kernel, writer: Writer) -> None:
        self.kernel, self.writer = kernel, writer
        left, right = _factors(kernel.anchor)
        *batch, self.m, self.k = shape_of(left)
        self.n = shape_of(right)[-1]
        self.batch = Axis(batch[0], "batch") if batch else None
        self.row, self.column, depth = Axis(self.m, "m"), Axis(self.n, "n"), Axis(self.k, "k")
        first = [self.batch] if self.batch else []
        free = len(first)
        self.left = strided(writer, left, [*first, self.row, depth], free=free)
        self.right = strided(writer, right, [*first, depth, self.column], free=free)
        self.axes = [*first, self.row, self.column]

    def write(self) -> None:
        """Rows of the result are lanes, or columns: what is cheaper to read and to store."""
        turned = self._is_turned()
        outer, lane = (self.column, self.row) if turned else (self.row, self.column)
        trace = Trace(self.writer.plan)
        self._give_sum(trace)
        order = list(range(len(self.axes)))
        if turned:
            order[-2:] = reversed(order[-2:])
        stores = stores_of(self.writer, self.kernel, trace, self.axes, order)
        first = [self.batch] if self.batch else []
        triangle = self._triangle(turned)
        blank = triangle is Triangle.RESULT
        before, body = epilogue(trace, stores, [*first, outer], lane, "first", may_be_blank=blank)
        a, b = (self.right, self.left) if turned else (self.left, self.right)
        am, ak = reversed(a.strides) if turned else a.strides
        bk, bn = reversed(b.strides) if turned else b.strides
        m, n = (self.n, self.m) if turned else (self.m, self.n)
        flags = [_is_half(a), _is_half(b), _is_bfloat16(a) and _is_bfloat16(b)]
        halves = "".join(f", {str(flag).lower()}" for flag in flags) if any(flags) else ""
        keeps = self._may_keep(b, m, n)
        if keeps or triangle:
            halves = "".join(f", {str(flag).lower()}" for flag in [*flags, keeps])
            halves += f", {triangle.name}" if triangle else ""
        gemm = f"Gemm<{m}, {n}, {self.k}, {am}, {ak}, {bk}, {bn}{halves}>"
        packed = self._packed(gemm, b, n) if keeps else None
        self.writer.need_scratch(f"{gemm}::scratch")
        ahead = _ahead(trace, stores, outer, lane)
        text = before + self._call(gemm, outer, body, a, b, packed, ahead)
        used = {**trace.used, a.pointer.name: a.pointer, b.pointer.name: b.pointer}
        if packed is not None:
            used[packed.name] = packed
        note = f"product {m}x{n}x{self.k} {self.kernel.anchor.name}"
        self.writer.function(text, used, note, writes=written_by(stores))

    def _triangle(self, turned: bool) -> Triangle | None:
        """The part that is left out, for the vector unit: the one for matrices does all."""
        known, kernel = self.writer.plan.triangles, self.kernel
        found = known.products.get(kernel.anchor)
        narrow = min(self.m, self.n, self.k) < _FEWEST_OF_TRIANGLE
        if found is None or turned or narrow or has_tiles():
            return None
        stored = [node for node in kernel.results if node in self.writer.plan.wanted]
        if found is Triangle.RESULT and not known.blank.issuperset(stored):
            return None
        return found

    def _may_keep(self, b: Operand, m: int, n: int) -> bool:
        """Is an operand worth to be packed once, for many runs or for many products of one?"""
        if self.batch is not None or n == 1:
            return False
        if m < _FEWEST_ROWS:
            return self._products_with(b) >= _VERY_OFTEN
        return self.writer.is_constant(b.pointer) or self._products_with(b) >= _OFTEN

    def _products_with(self, b: Operand) -> int:
        """How many read it, if it is an input: the steps of a recurrent layer all do."""
        plan, root = self.writer.plan, b.pointer.buffer.root
        if root.place is not Place.INPUT:
            return 0
        readers = plan.readers(plan.inputs[root.number])
        return sum(node.target in PRODUCTS for node in readers)

    def _packed(self, gemm: str, b: Operand, n: int) -> Pointer:
        """Memory for a packed operand: that of another product that wants it the same way."""
        writer, key = self.writer, (b.pointer, self.writer.writes_to(b.pointer), gemm)
        if key not in writer.packed:
            buffer = writer.packed[key] = writer.temporary([_packed_floats(n, self.k)])
            text = (
                f"static_assert({gemm}::kept_floats <= {buffer.size});"
                f"\ngemm_pack<{gemm}>({b.pointer.name}, {buffer.name}, t, T);"
            )
            note = f"packs {self.kernel.anchor.name}"
            writer.function(text, [b.pointer, Pointer(buffer)], note, writes=[buffer])
        return Pointer(writer.packed[key])

    def _call(
        self,
        gemm: str,
        outer: Axis,
        body: str,
        a: Operand,
        b: Operand,
        packed: Pointer | None,
        ahead: str,
    ) -> str:
        parameters = f"int {outer.name}, int first, int count, const float* row"
        text = f"\nauto ep = [&]({parameters}) INLINE_CALL {{ {body} }};"
        if self.batch is None:
            operands = f"{a.pointer.name}, {b.pointer.name}"
            if packed is not None:
                operands = f"{operands}, {packed.name}"
            name = "gemm" if packed is None else "gemm_kept"
            return f"{text}\n{name}<{gemm}>({operands}, scratch, t, T, ep, {ahead});"
        name, size = self.batch.name, self.batch.size
        places = "".join(
            f"\nconst {x.pointer.buffer.cpp}* {side}; {{ {decoded(x.space, self.batch)}"
            f" {side} = {x.pointer.name} + {x.space.resolve(x.batch).code()}; }}"
            for side, x in (("left", a), ("right", b))
        )
        return (
            f"\nconst bool apart = {size} % T == 0 || {size} >= 4 * T;"
            f"\nconst int part = apart ? 0 : t, parts = apart ? 1 : T;"
            f"\nfor (int {name} = apart ? share({size}, t, T) : 0,"
            f" end = apart ? share({size}, t + 1, T) : {size}; {name} < end; {name}++) {{"
            f"{places}{text}\ngemm<{gemm}>(left, right, scratch, part, parts, ep); }}"
        )

    def _give_sum(self, trace: Trace) -> None:
        """The value of the anchor: the sum, and what is added to it."""
        node = self.kernel.anchor
        if node.target not in _ADDS:
            return
        added: Any = node.args[0]
        term = trace.operand(added, index_of(self.axes), torch.float32)
        # The sum is known in the innermost loop only.
        trace.given[node] = trace.state("float", f"{ACC} + {term}", [ACC, term])

    def _is_turned(self) -> bool:
        kernel, plan = self.kernel, self.writer.plan
        if any(len(kernel.maps[m][-2]) > 1 for m in kernel.members):
            return False
        for node in kernel.results:
            if node in plan.targets or node in self.writer.returned:
                return self._lane_of(node) == "row"
        straight = self._read_cost(self.right, self.m, self.n)
        turned = self._read_cost(self.left, self.n, self.m)
        for member in kernel.members:
            for leaf in plan.leaves(member):
                buffer = plan.buffer(leaf)
                if buffer is None or buffer.shape != shape_of(kernel.anchor):
                    continue
                straight += self.m * self.n * 1.5 * (buffer.strides[-1] != 1)
                turned += self.m * self.n * 1.5 * (buffer.strides[-2] != 1)
        return turned < 0.9 * straight  # readers of the result rather go along its columns

    def _read_cost(self, lanes: Operand, m: int, n: int) -> float:
        """Of the product whose lanes are the n columns or rows of an operand."""
        if self._may_keep(lanes, m, n):
            return m * _whole(n) * self.k / 16
        bk, bn = lanes.strides if lanes is self.right else reversed(lanes.strides)
        return _read_cost(m, n, self.k, bk, bn)

    def _lane_of(self, node: fx.Node) -> str:
        """Which of row and column lies side by side in a result whose layout is given."""
        target = self.writer.plan.targets.get(node)
        value = (node if target is None else target).meta["val"]
        radix = self.kernel.map(node)
        side = value.stride()
        near = {
            name: min((side[dim] for dim in radix[place]), default=1 << 60)
            for name, place in (("row", -2), ("column", -1))
        }
        return min(near, key=lambda name: near[name])


def _is_half(operand: Operand) -> bool:
    """Must it be widened?"""
    return operand.pointer.buffer.cpp in HALVES.values()


def _is_bfloat16(operand: Operand) -> bool:
    """Can its numbers be multiplied in pairs, where the CPU does that?"""
    return operand.pointer.buffer.cpp == HALVES[torch.bfloat16]


def _ahead(trace: Trace, stores: Sequence[Store], outer: Axis, lane: Axis) -> str:
    """The results that lie in rows of one length, to be fetched while a tile is multiplied."""
    lengths: dict[int, list[str]] = {}
    for store in stores:
        address = trace.space.resolve(store.address)
        row = stride_of(trace.space, address, outer)
        if store.pointer.buffer.cpp == "float" and row and address.factor(lane) == 1:
            lengths.setdefault(row, []).append(store.pointer.name)
    for row, names in lengths.items():
        return f"Ahead{{{row}, {len(names[:_AHEAD])}, {{{', '.join(names[:_AHEAD])}}}}}"
    return "Ahead{}"


def _read_cost(m: int, n: int, k: int, bk: int, bn: int) -> float:
    """Of a product whose lanes are n: whole vectors of work, and packing of B.

    With few rows the template computes with rows as lanes, and transposes the sums.
    """
    straight = m * _whole(n) * k / 16 + (0.0 if bn == 1 else k * n * (0.6 if bk == 1 else 2.0))
    turned = _whole(m) * n * k / 16 + 0.6 * k * m + 0.5 * m * n
    return min(straight, turned)


def _packed_floats(n: int, k: int) -> int:
    """The most that a packed operand needs: in tiles, a number is up to three bfloat16."""
    plain = _whole(n) * k
    return max(plain, _whole(n) * _whole(_whole(k) // 2) * 3) if has_tiles() else plain


def _whole(size: int) -> int:
    """Rounded up to whole vectors."""
    return -(-size // 16) * 16
