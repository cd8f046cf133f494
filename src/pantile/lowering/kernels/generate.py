"""From a prepared program to the text of its C++ files."""

from __future__ import annotations

import os
from collections.abc import Collection

from torch import fx

from pantile.errors import ProgramError
from pantile.lowering.kernels.decompose import decomposed
from pantile.lowering.kernels.decompositions import decompositions
from pantile.lowering.kernels.expressions import storage_of
from pantile.lowering.kernels.plan import Plan
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.rules.elementwise import copy
from pantile.lowering.kernels.rules.table import ELEMENTWISE, FAMILIES
from pantile.lowering.kernels.simplify import simplify
from pantile.lowering.kernels.source import sources
from pantile.lowering.kernels.writer import Writer
from pantile.program.garbage import free_left_graphs
from pantile.program.program import Program


def generate(program: Program, constant: Collection[int] = ()) -> list[str]:
    """The C++ of a program, in one file or more; Refused if a part of it has no rule.

    What is made of the `constant` inputs alone is computed once for many runs.
    """
    return texts(planned(program, constant))


def texts(writer: Writer) -> list[str]:
    """The files of a program."""
    return sources(writer, os.cpu_count() or 1)


def planned(
    program: Program, constant: Collection[int] = (), left: Collection[fx.Node] = ()
) -> Writer:
    """The kernels of a program but for nodes that are left to torch."""
    try:
        return _planned(program, constant, left)
    except Refused:
        if not constant:
            raise
        return _planned(program, (), left)  # seldom: a constant with memory of its own cuts a loop


def _planned(program: Program, constant: Collection[int], left: Collection[fx.Node]) -> Writer:
    try:
        graph = decomposed(program, decompositions(), left)
    except ProgramError as error:  # also a decomposition of ours that has no rule for this case
        raise Refused(str(error.__cause__ or error).partition("\n")[0]) from error
    free_left_graphs()
    return written(graph, constant)


def written(graph: fx.Graph, constant: Collection[int] = ()) -> Writer:
    """Plan and write the kernels of a graph."""
    simplify(graph)
    writer = Writer(Plan(graph, FAMILIES, ELEMENTWISE, constant))
    writer.constant |= {writer.plan.buffers[writer.plan.inputs[number]] for number in constant}
    for kernel in writer.plan.kernels:
        try:
            kernel.family.emit(kernel, writer)
        except Refused as refusal:
            refusal.see_at(kernel.anchor)
            raise
    _copy_back(writer)
    _return_again(writer)
    return writer


def _return_again(writer: Writer) -> None:
    """A value that is returned more than once, or an input."""
    for number, output in enumerate(writer.plan.outputs):
        value = storage_of(output)
        if value.op == "placeholder" or writer.returned[value] != number:
            copy(writer, value, writer.output(value, number), "again:")


def _copy_back(writer: Writer) -> None:
    """New contents of inputs that could not be written in place."""
    plan = writer.plan
    for node in plan.copies:
        target, value = node.args[:2]
        assert isinstance(target, fx.Node) and isinstance(value, fx.Node)
        value = storage_of(value)
        if plan.buffers[value] is not plan.buffers[target]:
            copy(writer, value, plan.buffers[target], "new content:")
