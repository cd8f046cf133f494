"""`Options.logDir` and `dotChecks`: the graph of a compiled step, for Graphviz.

    options.logDir("logs")._Popart.set("dotChecks", ["FINAL"])    logs/training_final.dot

The old backend wrote one picture for each stage of its compiler. Here there is one, of the program
that is run, whichever checks are named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from torch import fx

from pantile.options import Options
from pantile.program.naming import TensorNames
from pantile.program.op_types import op_type
from pantile.program.program import Program
from pantile.store.atomic_file import write_atomically


def write_dot(program: Program, options: Options, *, name: str) -> None:
    """Write the graph if the options ask for it."""
    if not options._Popart.options.get("dotChecks"):
        return
    folder = Path(options.log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(["digraph step {", *_lines(program), "}", ""])
    write_atomically(folder / f"{name}_final.dot", [text.encode()])


def _lines(program: Program) -> Iterator[str]:
    names = TensorNames(program)
    for node in program.graph.nodes:
        if node.op == "output":
            continue
        called = node.op == "call_function"
        label = f"{op_type(node)}\n{names.of(node)}" if called else names.of(node)
        shape = "box" if called else "ellipse"
        yield f"  {_id(node)} [shape={shape}, label={json.dumps(label)}];"
        yield from (f"  {_id(source)} -> {_id(node)};" for source in node.all_input_nodes)


def _id(node: fx.Node) -> str:
    return json.dumps(node.name)
