"""Where the ops of forward run, in the log at level DEBUG.

enablePipelining set to value 1
 fc1/MatMul:0 [float32(2, 4), mode(Pipelined), ipu(0), stage(0)]
 fc2/MatMul:0 [float32(2, 4), mode(Pipelined), ipu(1), stage(1)]

Stages are those of the strategy, as the user counts them; a strategy of phases tells those.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from pantile.logging import logger
from pantile.options.strategy import ExecutionStrategy, PhasedExecution
from pantile.program.naming import TensorNames
from pantile.program.program import Program, tag_of
from pantile.runtime.placement import Block, Placement, phase_of


def log_placement(
    program: Program, placement: Placement, blocks: Sequence[Block], strategy: ExecutionStrategy
) -> None:
    """One line for each op of forward."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    pipelined = strategy.is_pipelined and placement.forward_stages > 1
    logger.debug("enablePipelining set to value %d", pipelined)
    places = zip(placement.ipus, placement.stages, strict=True)
    by_block = {block: place for (block, _), place in zip(blocks, places, strict=True)}
    for name, node in TensorNames(program).all.items():
        value, tag = node.meta.get("val"), tag_of(node)
        if node.op != "call_function" or tag.phase != "forward":
            continue
        if isinstance(value, torch.Tensor):
            where = _where(strategy, *by_block.get(tag.block, (0, 0)))
            logger.debug(" %s [%s, %s]", name, _spec(value), where)
    logger.debug("Graph lowered to PopART: %d nodes", len(program.graph.nodes))


def _where(strategy: ExecutionStrategy, ipu: int, stage: int) -> str:
    if isinstance(strategy, PhasedExecution):
        return f"mode(Phased), ipu({ipu}), phase({phase_of(strategy, stage)})"
    mode = "Pipelined" if strategy.is_pipelined else "Sharded"
    return f"mode({mode}), ipu({ipu}), stage({stage})"


def _spec(value: torch.Tensor) -> str:
    kind = str(value.dtype).removeprefix("torch.")
    return f"{kind}({', '.join(map(str, value.shape))})"
