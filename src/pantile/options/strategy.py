"""Execution strategies: which blocks form a stage, and in which order stages run.

    PipelinedExecution("embed", ["layer0", "layer1"], Stage("head").ipu(0))

    stage   0         1                 2
    blocks  embed     layer0, layer1    head
    ipu     -         -                 0        ("-": the block's own ipu_id, else the stage id)

A strategy only says what the user asked for. Capture meets the blocks and decides, with
`stage_of`, where each one goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self, TypeVar

from pantile.enums import AutoStage, Liveness
from pantile.errors import OptionTypeError, StrategyError
from pantile.options.validate import did_you_mean, flag, member_of, not_negative

BlockId = str
Item = TypeVar("Item")


class Stage:
    """Blocks that run together on one IPU."""

    def __init__(self, *block_ids: BlockId) -> None:
        for block_id in block_ids:
            if not isinstance(block_id, str):
                raise OptionTypeError(
                    f"Stage takes the ids of blocks, which are strings, not {block_id!r}",
                    fix=f'write Stage("{block_id}")',
                )
        self._blocks = block_ids
        self._ipu_id: int | None = None

    def ipu(self, ipu_id: int) -> Self:
        """Put the stage on this IPU of the replica."""
        self._ipu_id = not_negative("Stage.ipu", ipu_id)
        return self

    @property
    def blocks(self) -> tuple[BlockId, ...]:
        """The ids of the blocks, in order."""
        return self._blocks

    @property
    def ipu_id(self) -> int | None:
        """The IPU the user chose, if any."""
        return self._ipu_id

    def __repr__(self) -> str:
        ipu = "" if self._ipu_id is None else f".ipu({self._ipu_id})"
        return f"Stage({', '.join(map(repr, self._blocks))}){ipu}"


class Phase:
    """Stages that run at the same time, each on its own IPU."""

    def __init__(self, *stages_or_block_ids: Stage | BlockId) -> None:
        self._stages = _stages_of_phase(stages_or_block_ids)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in order."""
        return self._stages

    def stage(self, index: int) -> Stage:
        """The stage at that position."""
        return _item(self._stages, index, "Phase.stage")

    def ipus(self, *ipu_ids: int) -> None:
        """Choose one IPU for each stage."""
        if len(ipu_ids) != len(self._stages):
            raise StrategyError(
                f"Phase.ipus got {len(ipu_ids)} IPUs for {len(self._stages)} stages",
                fix="give one IPU for each stage",
            )
        for stage, ipu_id in zip(self._stages, ipu_ids, strict=True):
            stage.ipu(ipu_id)

    def __repr__(self) -> str:
        return f"Phase({', '.join(map(repr, self._stages))})"


def _stages_of_phase(given: Sequence[Any]) -> tuple[Stage, ...]:
    if all(isinstance(item, str) for item in given):
        return (Stage(*given),)
    if all(isinstance(item, Stage) for item in given):
        return tuple(given)
    raise OptionTypeError(
        f"Phase takes either stages or block ids, not {tuple(given)!r}",
        fix='write Phase(Stage("a"), Stage("b")) or Phase("a", "b")',
    )


def _item(items: Sequence[Item], index: Any, what: str) -> Item:
    position: int = not_negative(what, index)
    if position >= len(items):
        raise StrategyError(
            f"{what}({position}): there are only {len(items)}",
            fix=f"use an index below {len(items)}",
        )
    return items[position]


class ExecutionStrategy:
    """What the four strategies share: stages, found by the blocks in them."""

    EXECUTION_MODE: ClassVar[int]

    def __init__(self, stages: Iterable[Stage]) -> None:
        self._stages = tuple(stages)
        self._stage_of_block: dict[BlockId, Stage] = {}
        for stage in self._stages:
            for block_id in stage.blocks:
                if block_id in self._stage_of_block:
                    raise StrategyError(
                        f"{type(self).__name__}: block {block_id!r} is in two stages",
                        fix="list each block once",
                    )
                self._stage_of_block[block_id] = stage

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All stages, in order."""
        return self._stages

    @property
    def is_pipelined(self) -> bool:
        """Whether stages work on different micro-batches at the same time."""
        return False

    def stage(self, block_id: BlockId) -> Stage:
        """The stage that lists the block."""
        if block_id not in self._stage_of_block:
            listed = ", ".join(repr(name) for name in self._stage_of_block) or "none"
            hint = did_you_mean(str(block_id), self._stage_of_block)
            raise StrategyError(
                f"{type(self).__name__}: unknown block {block_id!r}, expected one of: {listed}",
                fix=hint or f"add {block_id!r} to a stage of the strategy",
            )
        return self._stage_of_block[block_id]

    def backendOptions(self) -> dict[str, int]:
        """The strategy as the backend's numbers."""
        return {"execution_mode": self.EXECUTION_MODE}

    def _contents(self) -> Sequence[Any]:
        return self._stages

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._contents()))})"


class PipelinedExecution(ExecutionStrategy):
    """Stages work at the same time, each on another micro-batch."""

    EXECUTION_MODE = 0

    def __init__(self, *args: Any) -> None:
        self._auto_stage: AutoStage | None = None
        if not args:
            self._auto_stage = AutoStage.SameAsIpu
        elif len(args) == 1 and isinstance(args[0], AutoStage):
            self._auto_stage = args[0]
        super().__init__(() if self._auto_stage is not None else map(self._as_stage, args))

    @property
    def auto_stage(self) -> AutoStage | None:
        """How blocks are numbered, or None if the stages were listed."""
        return self._auto_stage

    @property
    def is_pipelined(self) -> bool:
        """Whether stages work on different micro-batches at the same time."""
        return True

    def stage_of(self, block_id: BlockId, ipu_id: int | None, *, blocks_before: int) -> int:
        """The number of the stage a block belongs to.

        `blocks_before` is how many other blocks were met before this one was first met.
        """
        if self._auto_stage is None:
            return self._stages.index(self.stage(block_id))
        if self._auto_stage is AutoStage.AutoIncrement:
            return blocks_before + 1
        if ipu_id is None:
            raise StrategyError(
                f"block {block_id!r} has no ipu_id, from which AutoStage.SameAsIpu takes its stage",
                fix=f'give the block its IPU: Block("{block_id}", ipu_id=0), '
                "or use AutoStage.AutoIncrement",
            )
        return ipu_id

    def _contents(self) -> Sequence[Any]:
        if self._auto_stage is not None:
            return (_Verbatim(f"AutoStage.{self._auto_stage.name}"),)
        return self._stages

    def _as_stage(self, given: Any) -> Stage:
        if isinstance(given, Stage):
            return given
        if isinstance(given, str):
            return Stage(given)
        if isinstance(given, list | tuple):
            return Stage(*given)
        raise OptionTypeError(
            f"{type(self).__name__} takes stages, block ids or lists of block ids, not {given!r}",
            fix=f'write {type(self).__name__}(Stage("a"), "b", ["c", "d"])',
        )


class ShardedExecution(PipelinedExecution):
    """Stages work one after the other on the same micro-batch."""

    EXECUTION_MODE = 1

    @property
    def is_pipelined(self) -> bool:
        """Whether stages work on different micro-batches at the same time."""
        return False


class PhasedExecution(ExecutionStrategy):
    """Phases run one after the other; what only a later phase needs may leave the chip."""

    EXECUTION_MODE = 2
    IS_SERIAL: ClassVar[bool]

    def __init__(self, *phases: Any) -> None:
        if not phases:
            raise StrategyError(
                f"{type(self).__name__} needs at least one phase",
                fix=f'write {type(self).__name__}(Phase("a"), Phase("b"))',
            )
        self._phases = tuple(self._as_phase(given) for given in phases)
        self._separate_backward_phase = False
        self._tensors_liveness = Liveness.AlwaysLive
        super().__init__(stage for phase in self._phases for stage in phase.stages)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases, in order."""
        return self._phases

    @property
    def liveness(self) -> Liveness:
        """How long the tensors of a phase stay on the chip."""
        return self._tensors_liveness

    @property
    def off_chip(self) -> bool:
        """Do tensors leave the chip between phases?"""
        return not self.IS_SERIAL or self.liveness is not Liveness.AlwaysLive

    def phase(self, index: int) -> Phase:
        """The phase at that position."""
        return _item(self._phases, index, f"{type(self).__name__}.phase")

    def useSeparateBackwardPhase(self, use: bool = True) -> Self:
        """Give the backward pass phases of its own."""
        self._separate_backward_phase = flag("useSeparateBackwardPhase", use)
        return self

    def backendOptions(self) -> dict[str, int]:
        """The strategy as the backend's numbers."""
        return {
            **super().backendOptions(),
            "serial_phases_execution": self.IS_SERIAL,
            "separate_backward_phase": self._separate_backward_phase,
            "tensors_liveness": int(self._tensors_liveness),
        }

    def _contents(self) -> Sequence[Any]:
        return self._phases

    def _as_phase(self, given: Any) -> Phase:
        if isinstance(given, Phase):
            return given
        if isinstance(given, str | Stage):
            return Phase(given)
        if isinstance(given, list | tuple):
            return Phase(*given)
        raise OptionTypeError(
            f"{type(self).__name__} takes phases, stages, block ids or lists of them, "
            f"not {given!r}",
            fix=f'write {type(self).__name__}(Phase("a"), Phase("b"))',
        )


class SerialPhasedExecution(PhasedExecution):
    """Phases run one after the other on the same IPUs."""

    IS_SERIAL = True

    def setTensorsLiveness(self, liveness: Liveness) -> Self:
        """Say how long the tensors of a phase stay on the chip."""
        self._tensors_liveness = member_of(Liveness)("setTensorsLiveness", liveness)
        return self


class ParallelPhasedExecution(PhasedExecution):
    """Phases alternate between two sets of IPUs."""

    IS_SERIAL = False

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> Self:
        """Move the tensors of a phase off the chip once its forward pass is done."""
        wanted = flag("sendTensorsOffChipAfterFwd", off_chip)
        self._tensors_liveness = Liveness.OffChipAfterFwd if wanted else Liveness.AlwaysLive
        return self


class _Verbatim(str):
    """Text that shows itself without quotes in a repr."""

    def __repr__(self) -> str:
        return str(self)
