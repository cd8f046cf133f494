"""Where the ops of forward run and come from, in the log at level DEBUG.

poptorch.addmm (model.py:12) was lowered to MatMul
enablePipelining set to value 1
 fc1/MatMul:0 [float32(2, 4), mode(Pipelined), ipu(0), stage(0)]
 fc2/MatMul:0 [float32(2, 4), mode(Pipelined), ipu(1), stage(1)]
Op "fc2/MatMul", 1 of type ai.graphcore.MatMul:1
  fc2/MatMul:0
    layer: layer:embedding

The last three lines are for an op in a scope of `Attribute`.
Stages are those of the strategy, as the user counts them; a strategy of phases tells those, spread
out where its tensors leave the chip between them. The loss that is trained ends with an op
`IdentityLoss`, and one of absolute differences is an op `L1`.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence

import torch
from torch import fx

from pantile.enums import Liveness
from pantile.logging import logger
from pantile.options.fields import LIBRARY_FILES
from pantile.options.strategy import ExecutionStrategy, PhasedExecution
from pantile.program.naming import TensorNames
from pantile.program.op_types import op_name, op_type
from pantile.program.program import Program, tag_of
from pantile.runtime.placement import Block, Placement, phase_of

_STRIDES = {Liveness.OffChipAfterFwdNoOverlap: 2, Liveness.OffChipAfterEachPhase: 4}
"""Empty phases between two of the user's, in which tensors leave the chip and come back."""

_GAP = 4
"""The same between the last phase of forward and the first of backward."""


def log_placement(
    program: Program,
    placement: Placement,
    blocks: Sequence[Block],
    strategy: ExecutionStrategy,
    *,
    loss: int | None = None,
) -> None:
    """One line for each op of forward. `loss` is the output that is trained."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    pipelined = strategy.is_pipelined and placement.forward_stages > 1
    logger.debug("enablePipelining set to value %d", pipelined)
    places = zip(placement.ipus, placement.stages, strict=True)
    by_block = {block: place for (block, _), place in zip(blocks, places, strict=True)}
    if isinstance(strategy, PhasedExecution):
        _log_phases(strategy)
    trained = None if loss is None else program.returned[loss]
    names = TensorNames(program)
    for name, node in names.all.items():
        value, tag = node.meta.get("val"), tag_of(node)
        if node.op != "call_function" or tag.phase != "forward":
            continue
        if isinstance(value, torch.Tensor):
            # One block may be on several IPUs: the stage of the schedule knows which.
            ipu = placement.devices[tag.stage]
            where = _where(strategy, ipu, by_block.get(tag.block, (0, 0))[1])
            logger.debug(" %s [%s, %s]", name, _spec(value), where)
            for op in _loss_ops(node) if node is trained else ():
                scope = name[: name.rfind("/", 0, name.rfind(":")) + 1]
                logger.debug(" %s%s:0 [%s, %s]", scope, op, _spec(value), where)
    _log_attributes(program, names)
    logger.debug("Graph lowered to PopART: %d nodes", len(program.graph.nodes))


def _loss_ops(node: fx.Node) -> tuple[str, ...]:
    """What else the op that makes the loss is called."""
    source = node.all_input_nodes[0] if node.all_input_nodes else node
    is_l1 = op_type(node) in ("ReduceMean", "ReduceSum") and op_type(source) == "Abs"
    return ("L1", "IdentityLoss") if is_l1 else ("IdentityLoss",)


def log_sources(program: Program, excludes: Sequence[str]) -> None:
    """One line for each op: the line of the script it is from, unless an exclude hides it.

    Sources are never files of torch or ours, which is what the excludes of new options say; a
    script may well lie in a folder of such a name.
    """
    if not logger.isEnabledFor(logging.DEBUG):
        return
    hidden = [text for text in excludes if text not in LIBRARY_FILES]
    for node in program.graph.nodes:
        if node.op == "call_function":
            source = tag_of(node).source
            if not source or any(text in source for text in hidden):
                source = "[unknown]"
            logger.debug("poptorch.%s (%s) was lowered to %s", op_name(node), source, op_type(node))


def _log_attributes(program: Program, names: TensorNames) -> None:
    """The ops in scopes of `Attribute`, with what they were given there."""
    nodes = (node for node in program.graph.nodes if node.op == "call_function")
    for number, node in enumerate(nodes):
        split = ((*name.partition("/"), value) for name, value in tag_of(node).attributes)
        given = [f"    {key}: {key}:{value}" for _, slash, key, value in split if slash]
        if given and node.target is not operator.getitem:
            name = names.op(node)
            lines = [f'Op "{name}", {number} of type ai.graphcore.{op_type(node)}:1', f"  {name}:0"]
            logger.debug("%s", "\n".join(lines + given))


def _where(strategy: ExecutionStrategy, ipu: int, stage: int) -> str:
    if isinstance(strategy, PhasedExecution):
        phase = phase_of(strategy, stage) * _stride(strategy)
        return f"mode(Phased), ipu({ipu}), phase({phase})"
    mode = "Pipelined" if strategy.is_pipelined else "Sharded"
    return f"mode({mode}), ipu({ipu}), stage({stage})"


def _log_phases(strategy: PhasedExecution) -> None:
    """How many phases there are until the way back begins, and what leaves the chip."""
    serial = strategy.IS_SERIAL
    off_chip = strategy.off_chip
    last = (len(strategy.phases) - 1) * _stride(strategy)
    logger.debug("executionPhaseSettings.stages set to value %d", 1 if serial else 2)
    logger.debug(
        "executionPhaseSettings.phases set to value %d",
        last + (_GAP if serial and off_chip else 1),
    )
    for kind in ("activation", "weight", "optimizer", "accumulator") if off_chip else ():
        logger.debug("location_%s set to value useOnChipStorage(False)", kind)


def _stride(strategy: PhasedExecution) -> int:
    return _STRIDES.get(strategy.liveness, 1) if strategy.IS_SERIAL else 1


def _spec(value: torch.Tensor) -> str:
    kind = str(value.dtype).removeprefix("torch.")
    return f"{kind}({', '.join(map(str, value.shape))})"
