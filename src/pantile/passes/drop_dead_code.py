"""Drop nodes whose value nobody reads.

    %a = input                %a = input
    %b = exp(%a)        ->    %c = mul(%a, %a)
    %c = mul(%a, %a)          return %c
    return %c

A random draw stays, read or not: dropping it would shift every later draw, and the run would no
longer match eager PyTorch. So do effects, and what decides a guard. Inputs stay too: they are the
signature.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from pantile.program.effects import has_effect, is_random
from pantile.program.nodes import erase
from pantile.program.program import Program, copy_graph


def drop_dead_code(program: Program) -> Program:
    """Keep outputs, writes, random draws, effects and guards, and all that they read."""
    live = _live_nodes(program)
    dead = [node for node in program.graph.nodes if node not in live]
    if not dead:
        return program
    graph, moved = copy_graph(program.graph)
    return _without(program, graph, [moved[node] for node in dead])


def erase_dead_code(program: Program) -> Program:
    """The same for a program that a pass is still making: its graph itself is changed."""
    live = _live_nodes(program)
    dead = [node for node in program.graph.nodes if node not in live]
    return _without(program, program.graph, dead) if dead else program


def _without(program: Program, graph: fx.Graph, dead: Sequence[fx.Node]) -> Program:
    for node in reversed(dead):
        erase(node)
    read = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    return program.replace(
        graph=graph,
        constants={name: value for name, value in program.constants.items() if name in read},
        subgraphs={name: value for name, value in program.subgraphs.items() if name in read},
    )


def _live_nodes(program: Program) -> set[fx.Node]:
    guarded = {guard.node for guard in program.guards}
    live: set[fx.Node] = set()
    for node in reversed(program.graph.nodes):
        must_stay = node.op in ("placeholder", "output") or node.name in guarded
        if must_stay or node in live or _acts(node, program):
            live.add(node)
            live.update(node.all_input_nodes)
    return live


def _acts(node: fx.Node, program: Program) -> bool:
    return is_random(node, program.subgraphs) or has_effect(node, program.subgraphs)
