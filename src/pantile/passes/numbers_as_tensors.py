"""Turn recorded Python numbers into 0-d float64 tensors, for engines that take tensors only.

    hyper %lr scalar                      hyper %lr float64[]
    %a = operator.neg(%lr)         ->     %a = neg(%lr)
    %b = add(%p, %g, alpha=%a)            %c = _to_copy(%a, float32)
                                          %h = as_strided(%c, [], [])
                                          %m = mul(%g, %h);  %b = add(%p, %m)

Arithmetic on numbers stays in float64, as in Python, and a number is rounded to the type of the
tensor it meets, as in torch's kernels: only the last bit of a fused multiply-add may differ. Fused
and foreach updates become the formulas they stand for. Guards are dropped: they are checked before
the program runs.

Note [A number is computed once]
A compiler that inlines what is cheap per element computes `beta**step` for every element of every
parameter. Inductor keeps in memory what `as_strided` reads, so each 0-d value that is computed and
then used in a larger tensor goes through an `as_strided` that changes nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from pantile.errors import ProgramError
from pantile.passes.drop_dead_code import erase_dead_code
from pantile.passes.formula import NUMBER, Formulas, Term, computed_in, dtype_of
from pantile.passes.fused_updates import COUNTERS, fused_update, is_fused_update
from pantile.passes.node_writer import NodeWriter, arguments_of
from pantile.passes.number_rules import ARITHMETIC, COMPARISONS, FILLED, UNARY
from pantile.program.nodes import copied_node
from pantile.program.program import Program
from pantile.program.spec import Input, Output, ScalarSpec, TensorSpec

aten = torch.ops.aten

_NUMBER = TensorSpec((), NUMBER)
_ITEM = aten._local_scalar_dense.default
_FOREACH = "_foreach_"
_GUARDS = frozenset({operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge})
_PYTHON: dict[Any, Callable[..., Any]] = {
    operator.add: operator.add,
    operator.sub: operator.sub,
    operator.mul: operator.mul,
    operator.truediv: operator.truediv,
    operator.pow: operator.pow,
    operator.neg: operator.neg,
    math.pow: operator.pow,
    pow: operator.pow,
    min: lambda a, b: _folded(aten.minimum.default, a, b),
    max: lambda a, b: _folded(aten.maximum.default, a, b),
    abs: UNARY["abs"],
    operator.abs: UNARY["abs"],
    **{getattr(math, name): rule for name, rule in UNARY.items() if hasattr(math, name)},
}


def numbers_as_tensors(program: Program) -> Program:
    """The same program without Python numbers. Raises ProgramError for an op with no rule."""
    if not any(isinstance(entry.spec, ScalarSpec) for entry in program.inputs) and not any(
        node.target is _ITEM or is_fused_update(node.target) for node in program.graph.nodes
    ):
        return program
    return _hold_numbers(erase_dead_code(_Conversion(program).run()))


class _Conversion:
    """Copies a graph, exchanging numbers."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._graph = fx.Graph()
        self._writer = NodeWriter(self._graph, program.graph)
        self._formulas = Formulas(self._writer)
        # What became of each node: a node, or lists of them for ops that return lists.
        self._new: dict[fx.Node, Any] = {}
        self._numbers: set[fx.Node] = set()

    def run(self) -> Program:
        program = self._program
        pairs = zip(program.placeholders, program.inputs, strict=True)
        inputs = tuple(self._input(node, entry) for node, entry in pairs)
        for node in program.graph.nodes:
            if node.op != "placeholder" and node.target not in _GUARDS:
                with self._writer.standing_for(node):
                    self._new[node] = self._convert(node)
        self._graph.lint()
        pairs_out = zip(program.returned, program.outputs, strict=True)
        outputs = tuple(self._output(value, entry) for value, entry in pairs_out)
        return program.replace(graph=self._graph, inputs=inputs, outputs=outputs, guards=())

    def _input(self, node: fx.Node, entry: Input) -> Input:
        self._new[node] = self._graph.node_copy(node)
        if not isinstance(entry.spec, ScalarSpec):
            return entry
        self._numbers.add(node)
        self._writer.set_shape(self._new[node], (), NUMBER)
        return Input(entry.name, entry.kind, _NUMBER)

    def _output(self, value: Any, entry: Output) -> Output:
        return Output(entry.name, entry.kind, _NUMBER) if self._is_number(value) else entry

    def _is_number(self, value: Any) -> bool:
        return isinstance(value, fx.Node) and value in self._numbers

    def _convert(self, node: fx.Node) -> Any:
        if node.target is _ITEM:
            self._numbers.add(node)
            return self._formulas.cast(self._moved(node.args[0]), NUMBER)
        if node.target is operator.getitem:
            source = self._moved(node.args[0])
            if isinstance(source, (list, tuple)):
                return source[node.args[1]]  # type: ignore[index]
        takes_number = not self._numbers.isdisjoint(node.all_input_nodes)
        if node.target in _PYTHON and takes_number:
            self._numbers.add(node)
            return _PYTHON[node.target](*map(self._term, node.args)).node
        if is_fused_update(node.target):
            return self._fused(node)
        if _base_name(node).startswith(_FOREACH):
            return self._foreach(node, takes_number)
        if takes_number and node.op != "output":
            return self._apply(node, node.args, node.kwargs, node.meta["val"])
        return copied_node(self._graph, node, self._moved)

    def _moved(self, node: Any) -> Any:
        if node not in self._new:
            raise ProgramError(f"%{node.name} is a guard, but its answer is used as a value")
        return self._new[node]

    # Arguments as terms

    def _term(self, value: Any, dtype: torch.dtype | None = None) -> Any:
        """A node as a term, a tensor in `dtype` if one is given; other values as they are."""
        if not isinstance(value, fx.Node):
            return value
        if value in self._numbers:
            return self._formulas.number(self._moved(value))
        wanted = None if dtype_of(self._moved(value)) is torch.bool else dtype
        return self._formulas.tensor(self._moved(value), wanted)

    def _apply(self, node: fx.Node, args: Any, kwargs: Any, value: Any) -> fx.Node:
        """Write `node`, or one of the ops a foreach stands for, on `args`; it makes a `value`."""
        name = _base_name(node).removeprefix(_FOREACH)
        if name in FILLED:
            return self._filled(args[FILLED[name]], value)
        rule = ARITHMETIC.get(name) or COMPARISONS.get(name)
        dtype = computed_in(value.dtype) if name in ARITHMETIC else None
        if rule is None or "rounding_mode" in kwargs:
            raise _no_rule(node)
        terms = [self._term(arg, dtype) for arg in args]
        named = {key: self._term(arg, dtype) for key, arg in kwargs.items()}
        result: Term = rule(*terms, **named)
        return self._formulas.cast(result.node, value.dtype)

    def _filled(self, number: fx.Node, value: torch.Tensor) -> fx.Node:
        rounded = self._formulas.cast(self._moved(number), value.dtype)
        wide = self._writer.call(aten.expand.default, rounded, list(value.shape))
        return self._writer.call(aten.clone.default, wide, memory_format=torch.contiguous_format)

    # Ops on lists of tensors

    def _foreach(self, node: fx.Node, takes_number: bool) -> Any:
        values = node.meta["val"]
        name = _base_name(node).removeprefix(_FOREACH)
        rows = [
            ([_item(arg, i) for arg in node.args], {k: _item(v, i) for k, v in node.kwargs.items()})
            for i in range(len(values))
        ]
        if name == "copy":
            return [
                self._formulas.cast(self._moved(args[1]), value.dtype)
                for (args, _), value in zip(rows, values, strict=True)
            ]
        if takes_number:
            return [
                self._apply(node, args, kwargs, value)
                for (args, kwargs), value in zip(rows, values, strict=True)
            ]
        rule = UNARY.get(name) or ARITHMETIC.get(name)
        if rule is None:
            return copied_node(self._graph, node, self._moved)
        return [
            rule(*map(self._term, args), **{k: self._term(v) for k, v in kwargs.items()}).node
            for args, kwargs in rows
        ]

    def _fused(self, node: fx.Node) -> Any:
        given = {
            name: self._fused_argument(name, value) for name, value in arguments_of(node).items()
        }
        results = fused_update(node.target, given)
        return tuple(
            [self._formulas.cast(term.node, v.dtype) for term, v in zip(terms, values, strict=True)]
            for terms, values in zip(results, node.meta["val"], strict=True)
        )

    def _fused_argument(self, name: str, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._fused_argument(name, item) for item in value]
        if not isinstance(value, fx.Node) or value in self._numbers:
            return self._term(value)
        moved = self._moved(value)
        if name in (COUNTERS, "lr"):
            return self._formulas.number(self._formulas.cast(moved, NUMBER))
        return self._formulas.tensor(moved, computed_in(dtype_of(moved)))


def _hold_numbers(program: Program) -> Program:
    """See Note [A number is computed once]. The graph is ours, it is changed in place."""
    graph = program.graph
    writer = NodeWriter(graph)
    for node in list(graph.nodes):
        if node.op != "call_function" or not _is_single(node) or node.target is _HOLD:
            continue
        larger = [user for user in node.users if _is_larger(user)]
        if larger:
            with graph.inserting_after(node), writer.standing_for(node):
                held = writer.call(_HOLD, node, [], [])
            for user in larger:
                user.replace_input_with(node, held)
    graph.lint()
    return program


_HOLD = aten.as_strided.default


def _is_single(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.is_floating_point()


def _is_larger(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _base_name(node: fx.Node) -> str:
    """The name of an op without namespace and overload; empty for anything else."""
    if not isinstance(node.target, OpOverload) or node.target.namespace != "aten":
        return ""
    return node.target._schema.name.removeprefix("aten::")


def _item(value: Any, index: int) -> Any:
    return value[index] if isinstance(value, (list, tuple)) else value


def _folded(op: Any, a: Any, b: Any) -> Term:
    """min or max of a number and another, which may be written in the program."""
    term: Term = a if isinstance(a, Term) else b
    return term.beside(a).call(op, term.beside(b))


def _no_rule(node: fx.Node) -> ProgramError:
    return ProgramError(
        f"%{node.name} gives a recorded number to {node.target}, and there is no rule for it",
        fix='use Options.engine("reference") for this optimizer, or give the op a 0-d tensor',
    )
