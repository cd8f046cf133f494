"""Sums, means and maxima over dims.

    lanes are results     sum over rows: a vector of columns is added row by row
    lanes are summands    sum over columns: each lane adds its own, then the lanes are added

Which one is decided by what lies side by side in memory. The order of the additions depends on the
shape alone, never on threads: these divide the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf, prod
from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels.emission import ACC, Store, placed, stores_of, written_by
from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.index import Affine, Axis, index_of
from pantile.lowering.kernels.loops import collapsed, loop, shared_loop
from pantile.lowering.kernels.plan import Kernel
from pantile.lowering.kernels.radix import Radix
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.sharing import opened
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.types import cpp, dtype_of, literal, shape_of
from pantile.lowering.kernels.writer import Writer

aten = torch.ops.aten

_SIDE_BY_SIDE = 4
"""Rows that are added at once."""
_WIDE = 64
"""Accumulators side by side."""
_RUN = 128
"""So many rows are added to the accumulators of a column, then these to a double."""
_TURNS = 16
"""So many summands are added to each lane of a row, then the lanes to doubles."""
_FEW = 4
"""Lanes that have so many summands are added as floats, halves upon halves: a mean of 7 x 7 pixels
takes a quarter less than with doubles."""


@dataclass(frozen=True)
class _Operation:
    start: float
    step: str
    """The new sum; {0} is the old one, {1} the summand."""
    is_mean: bool = False


_SUM = _Operation(0, "{0} + {1}")
_MEAN = _Operation(0, "{0} + {1}", is_mean=True)
_MAX = _Operation(float("-inf"), "op_max({0}, {1})")
_MIN = _Operation(float("inf"), "op_min({0}, {1})")
_PRODUCT = _Operation(1, "{0} * {1}")
_ANY = _Operation(0, "{0} | {1}")
_ALL = _Operation(1, "{0} & {1}")

OPERATIONS: dict[Any, _Operation] = {
    aten.sum.dim_IntList: _SUM,
    aten.sum.default: _SUM,
    aten.mean.dim: _MEAN,
    aten.mean.default: _MEAN,
    aten.amax.default: _MAX,
    aten.amin.default: _MIN,
    aten.prod.default: _PRODUCT,
    aten.prod.dim_int: _PRODUCT,
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), _ANY),
    **dict.fromkeys((aten.all.default, aten.all.dim, aten.all.dims), _ALL),
}


def _dims(node: fx.Node) -> tuple[list[int], bool]:
    rank = len(shape_of(node.args[0]))  # type: ignore[arg-type]
    named = dict(zip(("dim", "keepdim"), node.args[1:], strict=False)) | dict(node.kwargs)
    given: Any = named.get("dim")
    given = [given] if isinstance(given, int) else given
    dims = [dim % rank for dim in given] if given and rank else list(range(rank))
    return dims, bool(named.get("keepdim", False)) and node.target is not aten.sum.default


def _extent(address: Affine) -> int:
    """How many elements are read in all loops."""
    return prod(axis.size for axis in address.terms)


class Reduce(Family):
    """Loops over results, and over what is added for each."""

    def check(self, node: fx.Node) -> None:
        """Truth only of bool; maxima not of it."""
        operation, dtype = OPERATIONS[node.target], dtype_of(node)
        if operation not in (_SUM, _MEAN) and (operation in (_ANY, _ALL)) != (dtype is torch.bool):
            raise Refused(f"{node.target} of {dtype_of(node)}")

    def takes(self, anchor: fx.Node, radix: Radix) -> bool:
        """The results are visited in the loops of what is added: these are not split again."""
        return all(len(digits) <= 1 for digits in radix)

    def emit(self, kernel: Kernel, writer: Writer) -> None:
        """Write the kernel."""
        _Reduction(kernel, writer).write()


class _Reduction:
    def __init__(self, kernel: Kernel, writer: Writer) -> None:
        self.kernel, self.writer = kernel, writer
        self.operation = OPERATIONS[kernel.anchor.target]
        source: Any = kernel.anchor.args[0]
        dims, keep = _dims(kernel.anchor)
        self.dtype = dtype_of(kernel.anchor)
        self.cpp = cpp(self.dtype)
        self.trace = Trace(writer.plan)
        shape = shape_of(source)
        self.count = prod(shape[dim] for dim in dims)
        axes = [Axis(size) for size in shape]
        self.summand = self.trace.operand(source, index_of(axes), self.dtype)
        leaves = self.trace.space.leaves
        free = [d for d in range(len(shape)) if d not in dims]
        self.outer = [leaf for d in free for leaf in leaves(axes[d]) if leaf.size > 1]
        self.inner = [leaf for d in dims for leaf in leaves(axes[d]) if leaf.size > 1]
        if keep:
            self.results = [axes[d] if d in free else Axis(1) for d in range(len(shape))]
        else:
            self.results = [axes[d] for d in free]

    def write(self) -> None:
        trace, writer = self.trace, self.writer
        after = Trace(writer.plan, prefix="w")
        after.space.splits.update(trace.space.splits)
        before = set(after.space.splits)
        stores = stores_of(writer, self.kernel, after, self.results, None)
        if set(after.space.splits) != before:
            raise Refused("a sum whose results are cut")
        sums = [trace.space.resolve(part) for s in trace.statements for part in s.sums]
        far = {a: max((abs(s.factor(a)) for s in sums), default=0) for a in self.outer + self.inner}
        self.outer.sort(key=lambda axis: -far[axis])
        self.inner.sort(key=lambda axis: -far[axis])
        self.inner, _ = collapsed(trace, self.inner)
        sums = [trace.space.resolve(part) for s in trace.statements for part in s.sums]
        # What lies side by side: of values with an element for each summand rather than for a row.
        near = {
            axis: sum(_extent(s) for s in sums if s.factor(axis) == 1)
            for axis in self.outer + self.inner
        }
        last = [axes[-1] for axes in (self.outer, self.inner) if axes]
        along = max(last, key=lambda axis: near[axis], default=None)
        if self.outer and self.inner and along is self.outer[-1] and along.size > 1:
            text = self._lanes_are_results(after, stores)
        else:
            text = self._lanes_are_summands(after, stores)
        used = {**trace.used, **after.used}
        count = prod(axis.size for axis in self.inner)
        note = f"sum of {count}: {self.kernel.anchor.name}"
        writer.function(text, used, note, writes=written_by(stores))

    def _add(self, to: str) -> str:
        return f"{to} = {self.operation.step.format(to, self.summand)};"

    def _is_float_sum(self) -> bool:
        return self.operation in (_SUM, _MEAN) and self.dtype.is_floating_point

    @staticmethod
    def _together(sums: Sequence[str]) -> str:
        """A sum of sums, as a double."""
        return "(double)" + " + ".join(sums)

    def _result(self, total: str) -> str:
        """The name ACC for a total. A mean is a double that is divided, so it is rounded once."""
        if self.operation.is_mean:
            total = f"({total}) / {opened(literal(float(self.count), torch.float64))}"
        return f"const {self.cpp} {ACC} = {total};"

    def _begin(self, wide: int) -> str:
        value = self.operation.start
        if isinf(value) and not self.dtype.is_floating_point:
            limits = torch.iinfo(self.dtype)
            value = limits.min if value < 0 else limits.max
        start = literal(value, self.dtype)
        return f"{self.cpp} sums[{wide}]; for (int j = 0; j < {wide}; j++) sums[j] = {start};"

    def _lanes_are_results(self, after: Trace, stores: list[Store]) -> str:
        lane, outer = self.outer[-1], self.outer[:-1]
        lane.is_lane = True
        lines = placed(self.trace, [[a] for a in [*outer, *self.inner, lane]], [])
        ends = placed(after, [[a] for a in [*outer, lane]], [ACC])
        text = "".join(lines[0] + ends[0])
        for depth, axis in enumerate(outer, 1):
            text += f"\n{loop(axis)} {{" + "".join(lines[depth] + ends[depth])
        # Whole cache lines, and work for two threads where there is much of it.
        wide = _WIDE if lane.size >= 2 * _WIDE else 32 if lane.size >= 32 else min(16, lane.size)
        n, blocks = lane.size, -(-lane.size // wide)
        count = str(wide)
        if n % wide:
            count = f"first + {wide} <= {opened(n)} ? {wide} : {opened(n)} - first"
        several = _SIDE_BY_SIDE if self.inner[-1].size >= 2 * _SIDE_BY_SIDE else 1
        text += (
            f"\nfor (int block = share({opened(blocks)}, t, T),"
            f" end = share({opened(blocks)}, t + 1, T);"
            f" block < end; block++) {{ const int first = block * {wide};"
            f" const int count = {count};"
            f"\n{self._begin(wide * several)}"
        )
        cut, step = self._cut([axis.size for axis in self.inner], _RUN)
        if step:
            text += f" double whole[{wide}]; for (int j = 0; j < {wide}; j++) whole[j] = 0;"
        body = f"const int {lane.name} = first + j;" + "".join(lines[-1])
        body += self._add(f"sums[u * {wide} + j]")
        row = f"LANEWISE for (int j = 0; j < {wide}; j++) {{ {body} }}"
        if n % wide:
            part = f"LANEWISE for (int j = 0; j < count; j++) {{ {body} }}"
            row = f"if (count == {wide}) {{ {row} }} else {{ {part} }}"
        text += self._rows(lines[1 + len(outer) :], row, several, cut, step)
        # One loop, not one for each row of sums: gcc takes a millisecond or two for every loop.
        rows = [f"sums[{u * wide} + j]" if u else "sums[j]" for u in range(several)]
        each = f"\nLANEWISE for (int j = 0; j < {wide}; j++)"
        total = "whole[j]" if step else "sums[j]"
        if step:
            start = "".join(f" {row} = 0;" for row in rows)
            text += f"{each} {{ whole[j] += {self._together(rows)};{start} }}" + "}" * (cut + 1)
        elif several > 1 and self._is_float_sum():
            total = self._together(rows)
        elif several > 1:
            step_of = self.operation.step.format
            fold = "".join(f"sums[j] = {step_of('sums[j]', row)};" for row in rows[1:])
            text += f"{each} {{ {fold} }}"
        text += (
            f"\nLANEWISE for (int j = 0; j < count; j++) {{ const int {lane.name} = first + j;"
            + self._result(total)
            + "".join(ends[-1])
            + "".join(store.code(after.space) for store in stores)
            + "}}"
        )
        return text + "}" * len(outer)

    def _rows(
        self, lines: Sequence[Sequence[str]], row: str, several: int, cut: int, step: int
    ) -> str:
        """The loops over what is added: `several` rows at once have sums of their own.

        One sum after the other would wait for the one before. The loops outside the cut stay open.
        """
        text = ""
        for depth, axis in enumerate(self.inner):
            begin, end = "0", opened(axis.size)
            if step and depth == cut:
                text += f"\nfor (int from = 0; from < {end}; from += {opened(step)}) {{"
                until = f"from + {opened(step)} < {end} ? from + {opened(step)} : {end}"
                text += f" const int to = {until};"
                begin, end = "from", "to"
            name, code = axis.name, "".join(lines[depth])
            if depth < len(self.inner) - 1:
                text += f"\nfor (int {name} = {begin}; {name} < {end}; {name}++) {{{code}"
                continue
            text += f"\nint at = {begin};"
            if several > 1:
                text += (
                    f"\nfor (; at + {several} <= {end}; at += {several})"
                    f" UNROLLED for (int u = 0; u < {several}; u++)"
                    f" {{ const int {name} = at + u;{code} {row} }}"
                )
            cut_here = step if step and depth == cut else several
            if several == 1 or axis.size % several or cut_here % several:  # else none is left
                text += (
                    f"\nfor (; at < {end}; at++) {{ const int u = 0, {name} = at;{code} {row} }}"
                )
        closed = len(self.inner) - 1 - (cut if step else 0)
        return text + "}" * closed

    def _cut(self, sizes: Sequence[int], run: int) -> tuple[int, int]:
        """Long sums are sums of short ones, which round less: the loop that is cut, and where."""
        if not self._is_float_sum() or prod(sizes) <= 2 * run:
            return 0, 0
        cut = max(d for d in range(len(sizes)) if prod(sizes[d:]) >= run)
        return cut, max(1, run // prod(sizes[cut + 1 :]))

    def _lanes_are_summands(self, after: Trace, stores: list[Store]) -> str:
        outer, inner = self.outer, self.inner
        lane = inner[-1] if inner else Axis(1)
        lane.is_lane = True
        lines = placed(self.trace, [[a] for a in [*outer, *inner]], [])
        # What needs the sum comes after the loops, everything else where its axes are.
        ends = placed(after, [[a] for a in outer] or [[]], [ACC])
        text = "".join(lines[0] + ends[0])
        for depth, axis in enumerate(outer, 1):
            text += f"\n{shared_loop(axis) if depth == 1 else loop(axis)} {{" + "".join(
                lines[depth]
            )
            text += "".join(ends[depth]) if depth < len(outer) else ""
        text += self._row_of_lanes(lines[1 + len(outer) :] or [[]], lane)
        text += "".join(ends[-1]) + "".join(store.code(after.space) for store in stores)
        text += "}" * len(outer)
        return text if outer else f"if (t == 0) {{ {text} }}"

    def _row_of_lanes(self, lines: Sequence[Sequence[str]], lane: Axis) -> str:
        """The loops over all summands of one result, and their sum."""
        wide = 64 if lane.size >= 256 else 16 if lane.size >= 16 else lane.size
        rest = lane.size % wide
        turns = [*(axis.size for axis in self.inner[:-1]), -(-lane.size // wide)]
        cut, step = self._cut(turns, _TURNS)
        cuts_row = step > 0 and cut == len(turns) - 1
        each = f"for (int j = 0; j < {wide}; j++)"
        aside = f"\nLANEWISE {each} {{ whole[j] += sums[j]; sums[j] = 0; }}" if step else ""
        text = f"\n{self._begin(wide)}"
        text += f" double whole[{wide}]; {each} whole[j] = 0;" if step else ""
        closed = ""
        for depth, axis in enumerate(self.inner[:-1]):
            if step and depth == cut:
                text += _in_parts(axis.name, opened(axis.size), opened(step), "1") + " {"
                closed = f"}}{aside} }}{closed}"
            else:
                text += f"\n{loop(axis)} {{"
                closed = f"}}{closed}"
            text += "".join(lines[depth])
        body = f"const int {lane.name} = from + j;{''.join(lines[-1])}" + self._add("sums[j]")
        row = f"{{ LANEWISE {each} {{ {body} }} }}"
        if cuts_row:
            parts = _in_parts("from", str(lane.size - rest), opened(step * wide), str(wide))
            text += f"{parts} {row}{aside} }}"
        else:
            text += f"\nfor (int from = 0; from < {lane.size - rest}; from += {wide}) {row}"
        if rest:
            text += f"\n{{ const int from = {lane.size - rest};"
            text += f" LANEWISE for (int j = 0; j < {rest}; j++) {{ {body} }} }}"
        text += closed + (aside if rest and cuts_row else "")
        halves = wide & (wide - 1) == 0
        lanes = "whole" if step else "sums"
        if self._is_float_sum() and not step and (prod(turns) > _FEW or not halves):
            text += f"\ndouble whole[{wide}]; {each} whole[j] = sums[j];"
            lanes = "whole"
        return f"{text}{self._fold(lanes, wide)}\n{self._result(f'{lanes}[0]')}"

    def _fold(self, lanes: str, wide: int) -> str:
        """Add the lanes, halves upon halves."""
        if wide & (wide - 1):
            step = self.operation.step.format(f"{lanes}[0]", f"{lanes}[j]")
            return f"\nfor (int j = 1; j < {wide}; j++) {lanes}[0] = {step};"
        text, half = "", wide // 2
        while half:
            step = self.operation.step.format(f"{lanes}[j]", f"{lanes}[j + {half}]")
            text += f"\nfor (int j = 0; j < {half}; j++) {lanes}[j] = {step};"
            half //= 2
        return text


def _in_parts(name: str, size: str, part: str, by: str) -> str:
    """A loop in parts: the one over parts is left open, for what is done after each."""
    return (
        f"\nfor (int begin = 0; begin < {size}; begin += {part}) {{"
        f" const int to = begin + {part} < {size} ? begin + {part} : {size};"
        f"\nfor (int {name} = begin; {name} < to; {name} += {by})"
    )
