"""Which options the programs of a stage have: the user's, else those of the Trainer's flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pantile.enums import OutputMode
from pantile.errors import Error
from pantile.lightning.modes import FUSED
from pantile.lightning.namespaces import Namespace
from pantile.logging import logger
from pantile.options import Options

REPORTS = "ipu_reports"
"""Where reports go if nobody says."""


@dataclass(frozen=True)
class StageModel:
    """What `poptorch_models` holds: how the programs of a stage run."""

    options: Options

    @property
    def _options(self) -> Options:
        """The name under which executors of PopTorch keep them."""
        return self.options


class StageOptions:
    """The part of the strategy that knows its options."""

    mode: str
    namespace: Namespace
    device_iterations: int
    autoreport: bool
    autoreport_dir: str | None
    lightning_module: Any
    parallel_devices: list[torch.device]
    _given_training: Options | None
    _given_inference: Options | None
    _defaults: tuple[Any, Options] | None

    @property
    def replicas(self) -> int:
        """Copies of the model: the devices of the Trainer."""
        return max(1, len(self.parallel_devices))

    @property
    def replication_factor(self) -> int:
        """Replicas of the present stage: what the options say, else the devices."""
        return int(self._stage_options().replication_factor)

    def _stage_options(self) -> Options:
        trainer = None if self.lightning_module is None else self.lightning_module._trainer
        return self.training_opts if trainer is None or trainer.training else self.inference_opts

    @property
    def training_opts(self) -> Options:
        """The options of training: the user's, else from the Trainer's flags."""
        return self._given_training or self._default_options()

    @property
    def inference_opts(self) -> Options:
        """The options of validation, test and prediction."""
        return self._given_inference or self._default_options()

    @property
    def poptorch_models(self) -> dict[Any, StageModel]:
        """For every stage of the present function of the Trainer, the options of its programs."""
        stages = self.namespace.find("trainer.states:RunningStage")
        trainer = self.lightning_module._trainer
        evaluated = StageModel(_settled(self.inference_opts, OutputMode.All))
        if trainer.state.fn != "fit":
            return {trainer.state.stage: evaluated}
        steps = trainer.accumulate_grad_batches
        training = _settled(self.training_opts, OutputMode.Final)
        if steps > 1 and training.Training.gradient_accumulation == 1:
            training.Training.gradientAccumulation(steps)
        rest = (stages.VALIDATING, stages.SANITY_CHECKING)
        return {stages.TRAINING: StageModel(training), **dict.fromkeys(rest, evaluated)}

    def warn_of_contradictions(self) -> None:
        """Options decide; say so where they decide against a flag of the Trainer."""
        for name in ("training_opts", "inference_opts"):
            given = self._given_training if name == "training_opts" else self._given_inference
            if given is not None and self.replicas not in (1, given.replication_factor):
                logger.warning(
                    "%s asks for %d replicas, the Trainer for devices=%d: the options decide.",
                    name,
                    given.replication_factor,
                    self.replicas,
                )

    def _default_options(self) -> Options:
        """Made once: they are asked for at every step."""
        key = (self.replicas, self.device_iterations)
        if self._defaults is None or self._defaults[0] != key:
            self._defaults = (key, self._new_options())
        return self._defaults[1]

    def _new_options(self) -> Options:
        options = Options().deviceIterations(self.device_iterations)
        options.replicationFactor(self.replicas)
        return options

    def _program_options(self, *, training: bool, parts: int) -> Options:
        """The options of one program that runs `parts` micro-batches a call."""
        options: Options = (self.training_opts if training else self.inference_opts).clone()
        options.outputMode(OutputMode.All)
        if self.autoreport:
            options.enableProfiling(self.autoreport_dir or REPORTS)
        if self.mode == FUSED and training:
            return options
        options.Training.gradientAccumulation(1)
        replicas = options.replication_factor
        if parts == 1 or parts % replicas:
            replicas = 1
        return options.deviceIterations(parts // replicas).replicationFactor(replicas)


def _settled(options: Options, mode: OutputMode) -> Options:
    """A copy, with an output mode that is no longer open."""
    copied: Options = options.clone()
    return copied.outputMode(mode) if copied.defaultOutputMode() else copied


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        raise Error(
            f"IPUStrategy: {name}={value!r} is unknown",
            fix=f"pass one of {', '.join(map(repr, choices))}",
        )


def check_iterations(value: Any) -> None:
    if type(value) is not int or value < 1:
        raise Error(f"IPUStrategy: device_iterations={value!r}", fix="pass a positive integer")
