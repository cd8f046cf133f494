"""What a step is made of, in the log at level TRACE.

{"maingraph":[{"type":"MatMul", ...
%0 : Float(16, 8, strides=[8, 1], requires_grad=1, device=ipu:0) -> fc.weight
%1 : Half(16, strides=[1], requires_grad=0, device=ipu:0) -> bn.running_var
Using vectorized ScatterReduce with none reduction: index_put
Graph right before popart:
graph(%x):
  %mm : Float(4, 4, strides=[4, 1], requires_grad=0, device=ipu:0) = popart::matmul(%x)
  %mm_memory = poptorch::set_available_memory[proportion=0.3](%mm)

A write through the indices of one axis moves whole rows at once; the third kind of line tells it.
What `set_available_memory` said follows the op it was said of, and names the one that works.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator

import torch
from torch import fx

from pantile.capture.hints import Hint
from pantile.logging import TRACE, logger
from pantile.program.op_types import op_type
from pantile.program.program import Program
from pantile.program.spec import InputKind, OutputKind, TensorSpec, scalar_name
from pantile.runtime.ir import ir_json

_STATE = (InputKind.PARAMETER, InputKind.BUFFER)


def log_graph(program: Program, partials: torch.dtype, hints: Iterable[Hint]) -> None:
    """The ops, the state, the writes that go by rows, and the graph with its hints of memory."""
    if not logger.isEnabledFor(TRACE):
        return
    logger.log(TRACE, "%s", ir_json(program, None, partials))
    for line in (*_state_lines(program), *_scatter_lines(program)):
        logger.log(TRACE, "%s", line)
    logger.log(TRACE, "Graph right before popart:\n%s", "\n".join(_graph_lines(program, hints)))


def _state_lines(program: Program) -> Iterator[str]:
    trained = {output.name for output in program.outputs_of(OutputKind.GRADIENT)}
    for number, entry in enumerate(program.inputs):
        if entry.kind in _STATE and isinstance(entry.spec, TensorSpec):
            kind = _type_text(entry.spec, trained=entry.name in trained)
            yield f"%{number} : {kind} -> {entry.name}"


def _scatter_lines(program: Program) -> Iterator[str]:
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.index_put.default and _by_rows(node):
            yield f"Using vectorized ScatterReduce with none reduction: {node.name}"


def _by_rows(node: fx.Node) -> bool:
    indices, accumulates = node.args[1], node.args[3:4]
    assert isinstance(indices, (list, tuple))
    return not any(accumulates) and sum(index is not None for index in indices) == 1


def _graph_lines(program: Program, hints: Iterable[Hint]) -> Iterator[str]:
    waiting = [hint for hint in hints if hint.kind == "available_memory"]
    yield f"graph({', '.join(f'%{node.name}' for node in program.placeholders)}):"
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        value = node.meta.get("val")
        kind = f" : {_type_text(TensorSpec.of(value))}" if isinstance(value, torch.Tensor) else ""
        read = ", ".join(f"%{source.name}" for source in node.all_input_nodes)
        yield f"  %{node.name}{kind} = popart::{op_type(node).lower()}({read})"
        hint = next((hint for hint in waiting if _is_about(hint, node)), None)
        if hint is not None:
            waiting.remove(hint)
            said = f"[proportion={hint.details['proportion']}]"
            about = _working_op(node).name
            yield f"  %{node.name}_memory = poptorch::set_available_memory{said}(%{about})"


def _is_about(hint: Hint, node: fx.Node) -> bool:
    value = node.meta.get("val")
    same_shape = isinstance(value, torch.Tensor) and tuple(value.shape) == hint.shape
    return same_shape and str(node.target) == hint.op


def _working_op(node: fx.Node) -> fx.Node:
    """The op that needs memory: a linear layer's product, not what shapes it or adds the bias."""
    found = node
    while op_type(found) in ("Add", "Reshape", "Transpose"):
        source = found.args[0]
        if not isinstance(source, fx.Node) or source.op != "call_function":
            return node
        found = source
    return found


def _type_text(spec: TensorSpec, *, trained: bool = False) -> str:
    sizes = "".join(f"{size}, " for size in spec.shape)
    strides = [math.prod(spec.shape[axis + 1 :]) for axis in range(len(spec.shape))]
    return (
        f"{scalar_name(spec.dtype)}({sizes}strides={strides}, requires_grad={int(trained)}, "
        "device=ipu:0)"
    )
