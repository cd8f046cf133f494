"""Which values get memory, and which kernel computes what.

Realised       operands and results of products, convolutions, sums and the like; what is returned
               or written to an input; what is used more than once and dear to compute. The rest is
               computed where it is used.
Fused          a realised value joins the latest kernel it reads, if it visits that kernel's
               elements one by one: bias and relu after a product, the optimizer after a gradient.
In place       a new parameter is written over the old one, if nobody reads the old one later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import torch
from torch import fx

from pantile.lowering.kernels import operators as own
from pantile.lowering.kernels.checks import SEVERAL, check_operators, check_outputs
from pantile.lowering.kernels.constants import constant_nodes, worth_memory
from pantile.lowering.kernels.costs import DEAR, FOR_A_ROW, is_row_wise, is_spread, narrower
from pantile.lowering.kernels.expressions import (
    CONSTANTS,
    LOOKUPS,
    RULES,
    cuts_rows,
    is_view,
    storage_of,
)
from pantile.lowering.kernels.families import Family
from pantile.lowering.kernels.index import Axis, index_of, same_index
from pantile.lowering.kernels.memory import Buffer
from pantile.lowering.kernels.nodes import pieces_of
from pantile.lowering.kernels.pointwise import COSTS, POINTWISE, Rule
from pantile.lowering.kernels.radix import Radix, radix_of
from pantile.lowering.kernels.recompute import recompute
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.trace import Trace
from pantile.lowering.kernels.triangles import triangles
from pantile.lowering.kernels.types import dtype_of, shape_of
from pantile.passes.philox import PHILOX

aten = torch.ops.aten

_MOST_MEMBERS = 8
"""No kernel computes more values that have nothing to do with each other."""
_DEEP = 24.0
"""A longer computation is cut."""
_BESIDE = 6
"""So many kernels back are looked at for one that computes something alike."""
_FAR = 100
"""So many nodes after a value that is kept anyway, nothing is computed with it."""


@dataclass(eq=False)
class Kernel:
    """One anchor, and what is computed from its elements as they come."""

    position: float
    anchor: fx.Node
    family: Family
    members: list[fx.Node] = field(default_factory=list)
    maps: dict[fx.Node, Radix] = field(default_factory=dict)
    """Which element of a member belongs to which of the anchor."""
    stores_anchor: bool = False

    def map(self, node: fx.Node) -> Radix:
        """The radix of a result; the anchor's own is the identity."""
        if node in self.maps:
            return self.maps[node]
        axes = [Axis(size) for size in shape_of(node)]
        radix = radix_of(index_of(axes), shape_of(node), axes)
        assert radix is not None
        return radix

    @property
    def results(self) -> list[fx.Node]:
        """All values it computes."""
        return [self.anchor, *self.members]


class Piece(NamedTuple):
    """Where a value belongs in a concatenation."""

    whole: fx.Node
    dim: int
    start: int
    new: frozenset[int]
    """Dims of the whole that the value does not have."""


class Plan:
    """The kernels of a graph, in order."""

    def __init__(
        self,
        graph: fx.Graph,
        families: Mapping[Any, Family],
        elementwise: Family,
        constant: Collection[int] = (),
    ) -> None:
        self._families, self._elementwise = families, elementwise
        self._read(graph)
        self.inputs = [node for node in self.nodes if node.op == "placeholder"]
        self.constant = constant_nodes(self.nodes, [self.inputs[number] for number in constant])
        """Values that are the same in every run."""
        self.realised: set[fx.Node] = set()
        self.kernel_of: dict[fx.Node, Kernel] = {}
        self.buffers: dict[fx.Node, Buffer] = {}
        self.copies = [n for n in self.nodes if n.target is aten.copy_.default]
        self.outputs: list[fx.Node] = list(self.nodes[-1].args[0])  # type: ignore[arg-type]
        self.targets: dict[fx.Node, fx.Node] = {}
        """The input that a value is the new content of."""
        self._early: set[fx.Node] = set()
        """Single numbers that are made of inputs alone, such as the count of steps."""
        self._leaves: dict[fx.Node, frozenset[fx.Node]] = {}
        check_operators(self.nodes, families)
        check_outputs(self.outputs, {copy.args[0] for copy in self.copies})
        self._realise()
        self._held = recompute(graph, self.realised)
        """Values that are kept for what is computed again from them, much later."""
        if self._held:
            self._read(graph)
            self.realised.clear()
            self._realise()
        self.pieces = self._find_pieces()
        """Values that are computed where a concatenation wants them."""
        self.triangles = triangles(self.nodes)
        """What a causal mask hides."""
        self.kernels = self._kernels()
        self.wanted = self._read_elsewhere()
        """Values that somebody outside their kernel reads: the rest needs no memory."""
        for kernel in self.kernels:
            kernel.stores_anchor = kernel.anchor in self.wanted or not kernel.members

    def _read(self, graph: fx.Graph) -> None:
        self.nodes: list[fx.Node] = list(graph.nodes)
        self.order = {node: place for place, node in enumerate(self.nodes)}

    # For traces

    def is_realised(self, node: fx.Node) -> bool:
        """Has the value memory of its own?"""
        return node in self.realised

    def buffer(self, node: fx.Node) -> Buffer | None:
        """Its memory, if it has some yet."""
        return self.buffers.get(node)

    def rule(self, target: Any) -> Rule | None:
        """How an operator is written down where it is used."""
        return RULES.get(target)

    # What there is

    def _family(self, node: fx.Node) -> Family | None:
        return self._families.get(node.target)

    def base(self, node: fx.Node) -> fx.Node:
        """The value that a view is a view of."""
        while is_view(node) and node not in self.realised:
            node = node.args[0]  # type: ignore[assignment]
            if node.target in SEVERAL:
                node = node.args[0]  # type: ignore[assignment]
        return node

    def leaves(self, node: fx.Node) -> frozenset[fx.Node]:
        """The values with memory that are read to compute a node."""
        if node in self._leaves:
            return self._leaves[node]
        found: set[fx.Node] = set()
        seen: set[fx.Node] = set()
        ahead = list(node.all_input_nodes)
        while ahead:
            other = ahead.pop()
            if other in seen:
                continue
            seen.add(other)
            if other.op == "placeholder" or other in self.realised:
                found.add(other)
            else:
                ahead += other.all_input_nodes
        self._leaves[node] = frozenset(found)
        return self._leaves[node]

    # Realising

    def _realise(self) -> None:
        for node in self.nodes:
            if node.op != "call_function":
                continue
            if self._family(node) is not None:
                self.realised.add(node)
        for node in self.nodes:
            family = self._family(node)
            needed = family.operands(node) if family is not None else []
            if node.target in LOOKUPS:
                self._need_itself(storage_of(node.args[0]))  # type: ignore[arg-type]
            if node.target is aten.cat.default:
                made = [_without_new_dims(value)[0] for value, _ in pieces_of(node)[1]]
                needed = [value for value in made if value.target in POINTWISE]
            for operand in needed:
                base = self.base(operand)
                if base.op != "placeholder":
                    self._need(base)
        self._realise_cut()
        self._realise_results()
        self.realised.update(worth_memory(self.nodes, self.constant))
        self._realise_dear()
        self._leaves.clear()

    def _find_pieces(self) -> dict[fx.Node, Piece]:
        found: dict[fx.Node, Piece] = {}
        for node in self.nodes:
            if node.target is not aten.cat.default:
                continue
            dim, pieces = pieces_of(node)
            for value, start in pieces:
                made, new = _without_new_dims(value)
                kept = made in self.targets or made in map(storage_of, self.outputs)
                same = dtype_of(made) is dtype_of(node)
                if made in self.realised and made not in found and not kept and same:
                    found[made] = Piece(node, dim, start, new)
        return found

    def _need_itself(self, node: fx.Node) -> None:
        """Also a view must have memory of its own, if it is no input."""
        if node.op != "placeholder":
            self._need(node)

    def _need(self, node: fx.Node) -> None:
        if node.target in CONSTANTS or node.target in RULES:
            self.realised.add(node)
        elif node not in self.realised:
            raise Refused(f"{node.target} as an operand")

    def _realise_cut(self) -> None:
        for node in self.nodes:
            source = node.args[0] if cuts_rows(node) else None
            if isinstance(source, fx.Node) and source.op != "placeholder":
                self._need(source)

    def _realise_results(self) -> None:
        written = {copy.args[0] for copy in self.copies}
        for copy in self.copies:
            target, source = copy.args[:2]
            assert isinstance(target, fx.Node) and isinstance(source, fx.Node)
            source = storage_of(source)
            if dtype_of(source) is not dtype_of(target):
                raise Refused("an input that changes its type")
            if source.op == "placeholder":
                if source is not target and source in written:
                    raise Refused("inputs that are exchanged")
                continue  # copied at the end
            self._need(source)
            self.targets.setdefault(source, target)
        for output in self.outputs:
            self._need_itself(storage_of(output))

    def _realise_dear(self) -> None:
        costs: dict[fx.Node, float] = {}
        for node in self.nodes:
            if node.op == "placeholder" or node in self.realised:
                costs[node] = 1.0
            elif node.op == "call_function" and node.target in CONSTANTS:
                costs[node] = 0.0
            elif node.op == "call_function":
                costs[node] = self._cost(node, costs)
                # Not the 64 bits of a draw: what both halves become is narrower.
                several = costs[node] > DEAR and node.target is not PHILOX
                several = several and (self._uses(node) > 1 or is_spread(node))
                big = shape_of(node) if isinstance(node.meta.get("val"), torch.Tensor) else ()
                if node.target in POINTWISE and prod(big) > 1 and (several or costs[node] > _DEEP):
                    narrow = narrower(node, costs)
                    self.realised.add(narrow)
                    costs[node] = 1.0 + costs[node] - costs[narrow]

    def _cost(self, node: fx.Node, costs: dict[fx.Node, float]) -> float:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            return 0.0  # computed before the loops
        below = 0.0
        for other in node.all_input_nodes:
            cost = costs.get(other, 0.0)
            # What is the same for a whole row is computed before the innermost loop.
            below += min(cost, FOR_A_ROW) if is_row_wise(other, node) else cost
        return below + COSTS.get(node.target, 0.0) + (0.0 if is_view(node) else 0.3)

    def _uses(self, node: fx.Node) -> int:
        """How many nodes compute with a value, seen through views."""
        users: set[fx.Node] = set()
        ahead = list(node.users)
        while ahead:
            user = ahead.pop()
            if is_view(user) and user not in self.realised:
                ahead += user.users
            else:
                users.add(user)
        return len(users)

    # Kernels

    def _kernels(self) -> list[Kernel]:
        kernels: list[Kernel] = []
        for node in self.nodes:
            if node not in self.realised:
                continue
            family = self._family(node)
            if family is None:
                self._note_early(node)
                joined = self._join(node) or self._join_beside(node, kernels)
                if joined is not None:
                    self.kernel_of[node] = joined
                    continue
                family = self._elementwise
            # Constants and the count of steps come before all else, so that nothing waits for them.
            first = len(self.nodes) if any(self._is_first(node)) else 0
            kernel = Kernel(float(self.order[node] - first), node, family)
            self.kernel_of[node] = kernel
            kernels.append(kernel)
        return sorted(kernels, key=lambda kernel: kernel.position)

    def _is_first(self, node: fx.Node) -> tuple[bool, bool]:
        """Is it computed before all else, as a constant or as an early number?"""
        return node in self.constant, node in self._early

    def _note_early(self, node: fx.Node) -> None:
        """Is it a number that can be computed before all else? Then updates can join gradients."""
        known = all(leaf.op == "placeholder" or leaf in self._early for leaf in self.leaves(node))
        if known and prod(shape_of(node)) == 1 and node not in self.constant:
            self._early.add(node)

    def _join(self, node: fx.Node) -> Kernel | None:
        """The kernel that can compute a value on the way, made to do so."""
        made = [leaf for leaf in self.leaves(node) if leaf.op != "placeholder"]
        if node not in self.constant:
            made = [leaf for leaf in made if leaf not in self.constant]
        if not made:
            return None
        kernel = max((self.kernel_of[leaf] for leaf in made), key=lambda k: k.position)
        if not kernel.family.has_epilogue or prod(shape_of(kernel.anchor)) != prod(shape_of(node)):
            return None
        if kernel.anchor in self._held and self.order[node] - kernel.position > _FAR:
            return None
        radix = self._map(kernel, node)
        if radix is None or not kernel.family.takes(kernel.anchor, radix):
            return None
        return self._admitted(kernel, node, radix)

    def _admitted(self, kernel: Kernel, node: fx.Node, radix: Radix) -> Kernel | None:
        """The kernel with one more member; None if that would write over what is still read."""
        kernel.members.append(node)
        kernel.maps[node] = radix
        if node in self.targets and not self._may_overwrite(node, kernel):
            kernel.members.pop()
            del kernel.maps[node]
            return None
        return kernel

    def _join_beside(self, node: fx.Node, kernels: Sequence[Kernel]) -> Kernel | None:
        """The last elementwise kernel, if it is of the same shape and all that is read is there.

        Or one a little before, if both read a value that is kept for what is computed again.
        """
        first = self._is_first(node)
        near = [k for k in kernels[-_BESIDE:] if self._is_first(k.anchor) == first]
        for kernel in reversed(near):
            if kernel.family is not self._elementwise:
                continue
            held = self._held & self.leaves(node) & self.leaves(kernel.anchor)
            if (kernel is near[-1] or held) and self._fits_beside(node, kernel):
                return self._admitted(kernel, node, kernel.map(kernel.anchor))
        return None

    def _fits_beside(self, node: fx.Node, kernel: Kernel) -> bool:
        ready = all(
            self.kernel_of[leaf].position < kernel.position
            for leaf in self.leaves(node)
            if leaf.op != "placeholder"
        )
        full = len(kernel.members) >= _MOST_MEMBERS
        return not full and ready and shape_of(node) == shape_of(kernel.anchor)

    def _map(self, kernel: Kernel, node: fx.Node) -> Radix | None:
        """Which element of a node belongs to which of the anchor; None if it is no bijection."""
        trace = Trace(self, probing=True, computed={node})
        trace.given = dict.fromkeys(kernel.results, "given")
        axes = [Axis(size) for size in shape_of(node)]
        try:
            trace.value(node, index_of(axes))
        except Refused:
            return None
        if any(read.whole and read.node in trace.given for read in trace.reads):
            return None  # elements that are not computed yet
        found: Radix | None = None
        for read in trace.asked:
            index = trace.space.resolved(read.index)
            if read.node is kernel.anchor:
                radix = radix_of(index, shape_of(read.node), axes)
            else:
                same = shape_of(read.node) == shape_of(node) and same_index(index, index_of(axes))
                radix = kernel.maps[read.node] if same else None
            if radix is None or (found is not None and found != radix):
                return None
            found = radix
        return found

    def _may_overwrite(self, node: fx.Node, kernel: Kernel) -> bool:
        """May a kernel write a value over the input it is the new content of?"""
        target = self.targets[node]
        if kernel.family.reads_apart and target in self.leaves(kernel.anchor):
            return False
        if any(piece.whole is node for piece in self.pieces.values()):
            return False  # its pieces are written before
        for other in self._readers[target]:
            if other is node:
                continue
            home = self.kernel_of.get(other)
            if home is kernel and self._in_step(kernel, node, other):
                continue
            if (home.position if home is not None else self.order[other]) >= kernel.position:
                return False
        return self._reads_in_place(node, target)

    def _in_step(self, kernel: Kernel, node: fx.Node, other: fx.Node) -> bool:
        """Does another result of the kernel read the input where the new value is written?"""
        same = shape_of(node) == shape_of(other) and kernel.map(node) == kernel.map(other)
        return same and self._reads_in_place(other, self.targets[node])

    def _reads_in_place(self, node: fx.Node, target: fx.Node) -> bool:
        """Is the old value read only where the new one is written?"""
        if self._family(node) is not None:
            return target not in self.leaves(node)
        trace = Trace(self, probing=True, computed={node})
        axes = [Axis(size) for size in shape_of(node)]
        trace.value(node, index_of(axes))
        return all(
            not read.whole and same_index(trace.space.resolved(read.index), index_of(axes))
            for read in trace.reads
            if read.node is target
        )

    def readers(self, given: fx.Node) -> Sequence[fx.Node]:
        """The values with memory that are computed from an input."""
        return self._readers[given]

    @cached_property
    def _readers(self) -> dict[fx.Node, list[fx.Node]]:
        readers: dict[fx.Node, list[fx.Node]] = {node: [] for node in self.inputs}
        for node in self.nodes:
            if node in self.realised:
                for leaf in self.leaves(node):
                    if leaf.op == "placeholder":
                        readers[leaf].append(node)
        return readers

    def may_place_over(self, node: fx.Node) -> fx.Node | None:
        """The input whose memory a value may take, now that all kernels are known."""
        target = self.targets.get(node)
        if target is None or not self._may_overwrite(node, self.kernel_of[node]):
            return None
        return target

    def _read_elsewhere(self) -> set[fx.Node]:
        wanted = {storage_of(output) for output in self.outputs} | set(self.targets)
        for node in self.realised:
            home = self.kernel_of[node]
            for leaf in self.leaves(node):
                if leaf.op != "placeholder" and self.kernel_of[leaf] is not home:
                    wanted.add(leaf)
        return wanted


def _without_new_dims(node: fx.Node) -> tuple[fx.Node, frozenset[int]]:
    """The value behind an unsqueeze, and the dim that was added."""
    if node.target is not aten.unsqueeze.default:
        return node, frozenset()
    source, dim = node.args[:2]
    assert isinstance(source, fx.Node) and isinstance(dim, int)
    return source, frozenset({dim % len(shape_of(node))})


def count_convolutions(nodes: Sequence[fx.Node]) -> int:
    """How many give images? If some do, images lie channels last."""
    return sum(node.target in (aten.convolution.default, own.conv_input) for node in nodes)
