"""Draw random numbers by counting instead of from torch's generator.

    arg   %x                               arg   %x
    %m = bernoulli(%e, 0.9)       ->       seeds %seeds "seeds" int64[1]
    %y = mul(%x, %m)                       %s = select(%seeds, 0, 0)
                                           %u = … bits of (%s, index of the element) …
                                           %m = lt(%u, 0.9)
                                           %y = mul(%x, %m)

A generator is one for the whole process and draws one number after the other. A number that is a
function of a seed and its index can be computed anywhere, in any order, inside any loop. The
executor fills `seeds` anew for each micro-batch: same seeds, same numbers, on every engine. They
are other numbers than eager PyTorch draws.

What cannot be written so stays as it is: rejection sampling, explicit generators, branches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from pantile.passes.drop_dead_code import erase_dead_code
from pantile.passes.formula import Formulas
from pantile.passes.node_writer import NodeWriter, arguments_of
from pantile.passes.random_bits import MOST_ELEMENTS
from pantile.passes.random_rules import RULES, Draw, can_draw
from pantile.program.effects import is_random
from pantile.program.nodes import erase
from pantile.program.program import Program, copy_graph
from pantile.program.spec import Input, InputKind, TensorSpec

aten = torch.ops.aten

SEEDS = "seeds"
"""The name of the input."""


def counter_random(program: Program) -> Program:
    """The same program with one seed for each place that draws random numbers.

    The seeds are the last input, `Input("seeds", InputKind.SEEDS, int64[n])`; a program that draws
    nothing, or nothing that can be written so, gets none.
    """
    found = [node for node in program.graph.nodes if _is_site(node)]
    if not found:
        return program
    graph, moved = copy_graph(program.graph)
    sites = [moved[node] for node in found]
    writer = NodeWriter(graph)
    inputs, seeds, first = _with_seeds(program, writer, len(sites))
    formulas = Formulas(writer)
    for number, node in enumerate(sites, first):
        with writer.replacing(node):
            seed = writer.call(aten.select.int, seeds, 0, number)
            results = _drawn(node, formulas, seed)
        _replace(node, results)
    graph.lint()
    return erase_dead_code(program.replace(graph=graph, inputs=inputs))


def _is_site(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload) or not is_random(node):
        return False
    result = _results(node)[0]
    if not isinstance(result, torch.Tensor) or result.numel() > MOST_ELEMENTS:
        return False
    return can_draw(_name(node), arguments_of(node), result.dtype)


def _with_seeds(
    program: Program, writer: NodeWriter, count: int
) -> tuple[tuple[Input, ...], fx.Node, int]:
    """The inputs with `count` more seeds, the node of all seeds, and how many there were."""
    for place, entry in enumerate(program.inputs):
        if entry.kind is InputKind.SEEDS and isinstance(entry.spec, TensorSpec):
            node = [n for n in writer.graph.nodes if n.op == "placeholder"][place]
            first = entry.spec.shape[0]
            shape = (first + count,)
            writer.set_shape(node, shape, torch.int64)
            grown = Input(entry.name, entry.kind, TensorSpec(shape, torch.int64))
            return (*program.inputs[:place], grown, *program.inputs[place + 1 :]), node, first
    node = writer.placeholder(SEEDS, (count,), torch.int64)
    added = Input(SEEDS, InputKind.SEEDS, TensorSpec((count,), torch.int64))
    return (*program.inputs, added), node, 0


def _drawn(node: fx.Node, formulas: Formulas, seed: fx.Node) -> list[fx.Node]:
    """What a random op returns, drawn with a seed."""
    given = {
        name: formulas.tensor(value) if isinstance(value, fx.Node) else value
        for name, value in arguments_of(node).items()
    }
    results = _results(node)
    terms = RULES[_name(node)](Draw(formulas, seed, given, results[0]))
    pairs = zip(terms if isinstance(terms, tuple) else (terms,), results, strict=True)
    return [formulas.cast(term.node, result.dtype) for term, result in pairs]


def _replace(node: fx.Node, results: list[fx.Node]) -> None:
    if isinstance(node.meta["val"], torch.Tensor):
        node.replace_all_uses_with(results[0])
    else:
        for user in list(node.users):
            user.replace_all_uses_with(results[user.args[1]])  # type: ignore[index]
            erase(user)
    erase(node)


def _results(node: fx.Node) -> list[Any]:
    value = node.meta["val"]
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _name(node: fx.Node) -> str:
    name: str = node.target._schema.name  # type: ignore[union-attr]
    return name.removeprefix("aten::")
