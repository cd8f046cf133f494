"""What a step is made of, in the log at level TRACE.

{"maingraph":[{"type":"MatMul", ...
%0 : Float(16, 8, strides=[8, 1], requires_grad=1, device=ipu:0) -> fc.weight
%1 : Half(16, strides=[1], requires_grad=0, device=ipu:0) -> bn.running_var
Using vectorized ScatterReduce with none reduction: index_put

The last line is for a write through the indices of one axis: it moves whole rows at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import fx

from pantile.logging import TRACE, logger
from pantile.program.program import Program
from pantile.program.spec import InputKind, OutputKind, TensorSpec, scalar_name
from pantile.runtime.ir import ir_json

_STATE = (InputKind.PARAMETER, InputKind.BUFFER)


def log_graph(program: Program, partials: torch.dtype) -> None:
    """The ops, the state, and the writes that go by rows."""
    if not logger.isEnabledFor(TRACE):
        return
    logger.log(TRACE, "%s", ir_json(program, None, partials))
    for line in (*_state_lines(program), *_scatter_lines(program)):
        logger.log(TRACE, "%s", line)


def _state_lines(program: Program) -> Iterator[str]:
    trained = {output.name for output in program.outputs_of(OutputKind.GRADIENT)}
    for number, entry in enumerate(program.inputs):
        if entry.kind in _STATE and isinstance(entry.spec, TensorSpec):
            shape = entry.spec.shape
            strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
            sizes = "".join(f"{size}, " for size in shape)
            yield (
                f"%{number} : {scalar_name(entry.spec.dtype)}({sizes}strides={strides}, "
                f"requires_grad={int(entry.name in trained)}, device=ipu:0) -> {entry.name}"
            )


def _scatter_lines(program: Program) -> Iterator[str]:
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.index_put.default and _by_rows(node):
            yield f"Using vectorized ScatterReduce with none reduction: {node.name}"


def _by_rows(node: fx.Node) -> bool:
    indices, accumulates = node.args[1], node.args[3:4]
    assert isinstance(indices, (list, tuple))
    return not any(accumulates) and sum(index is not None for index in indices) == 1
