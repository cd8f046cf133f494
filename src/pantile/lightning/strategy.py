"""`IPUStrategy`: the steps of a LightningModule as compiled programs under Lightning's own loops.

    Trainer ── training_step ──► program: outputs, logged values, gradients (update, if fused)
            ── backward      ──► gradients into .grad            (fused: hooks only)
            ── optimizer_step ─► the optimizer                   (fused: hooks only)
            ── validation_step, test_step, predict_step ──► program: outputs, logged values

Weights, buffers and optimizer state are the host's own tensors, changed in place: checkpoints,
callbacks and schedulers need nothing special.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from time import perf_counter
from typing import Any

import torch

from pantile.errors import CaptureError, OptimizerError
from pantile.lightning.accelerator import IPUAcceleratorMembers, accelerator_class
from pantile.lightning.bridge import bridge
from pantile.lightning.clipping import clipped
from pantile.lightning.fast_kernels import fast_kernels
from pantile.lightning.inspection import Inspection
from pantile.lightning.loaders import combined
from pantile.lightning.manual import ManualOptimization
from pantile.lightning.modes import (
    FUSED,
    SPLIT,
    is_function,
    observing,
    reasons_to_rather_split,
    reasons_to_split,
)
from pantile.lightning.namespaces import Made, Namespace, made_class
from pantile.lightning.one_process import OneProcess
from pantile.lightning.precision import (
    IPUPrecisionMembers,
    as_ipu_precision,
    precision_class,
    precision_of_weights,
)
from pantile.lightning.programs import Inside, Kind, Programs
from pantile.lightning.resumable import GRADIENTS, put_gradients_back, resumable, save_gradients
from pantile.lightning.stage_options import StageOptions, check_choice, check_iterations
from pantile.lightning.step_results import (
    NotFused,
    averaged,
    check_finite,
    gradients_of,
    marked_loss,
    no_more,
    parts_of,
)
from pantile.logging import logger
from pantile.options import Options
from pantile.runtime.step_module import StepProgram
from pantile.runtime.whole_step import OptimizersInStep
from pantile.runtime.wrap import check_is_python

_STEP_MODES = ("auto", SPLIT, FUSED)
_FALLBACKS = (None, "eager")


class IPUStrategyMembers(OneProcess, StageOptions, Inspection, ManualOptimization, Made):
    """The members of `IPUStrategy`, for either namespace."""

    strategy_name = "ipu_strategy"
    is_ipu_strategy = True
    namespace: Namespace
    # What the base class of either namespace has:
    optimizers: Any
    _parallel_devices: Any
    num_nodes: int = 1

    def __init__(
        self,
        accelerator: Any = None,
        device_iterations: int = 1,
        autoreport: bool = False,
        autoreport_dir: str | None = None,
        parallel_devices: Sequence[torch.device] | None = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        training_opts: Options | None = None,
        inference_opts: Options | None = None,
        *,
        step_mode: str = "auto",
        fallback: str | None = None,
        exact_resume: bool = True,
        debug: bool = False,
    ) -> None:
        check_choice("step_mode", step_mode, _STEP_MODES)
        check_choice("fallback", fallback, _FALLBACKS)
        check_iterations(device_iterations)
        self._ipu_accelerator: Any = None
        super().__init__(  # type: ignore[call-arg]
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
        )
        # Where Lightning looks for the user's own choice.
        self._precision_plugin = as_ipu_precision(precision_plugin, self.namespace)
        self.device_iterations = device_iterations
        self.autoreport, self.autoreport_dir = autoreport, autoreport_dir
        self._given_training, self._given_inference = training_opts, inference_opts
        self._step_mode, self._fallback = step_mode, fallback
        self._exact_resume, self._debug = exact_resume, debug
        self._saved_gradients: Any = None
        self.mode = SPLIT
        self.mode_reasons: list[str] = []
        self._programs: Programs | None = None
        self._defaults: tuple[Any, Options] | None = None
        self._eager: set[str] = set()
        self._in_step: dict[tuple[bool, ...], OptimizersInStep] = {}
        self._counts = {"calls": 0.0, "seconds": 0.0}
        self.optimizer_updates = 0

    # What Lightning's connector sets

    @property
    def accelerator(self) -> Any:
        """Ours, whatever was chosen for `accelerator="auto"`."""
        # Not kept in `_accelerator`: a second Trainer would take it for the user's choice.
        return self._ipu_accelerator or self.__dict__.get("_accelerator")

    @accelerator.setter
    def accelerator(self, accelerator: Any) -> None:
        if not isinstance(accelerator, IPUAcceleratorMembers):
            accelerator = accelerator_class(self.namespace)()
        accelerator.strategy = self
        self._ipu_accelerator = accelerator

    @property
    def parallel_devices(self) -> list[torch.device]:
        """One label for each replica."""
        return self._parallel_devices or []

    @parallel_devices.setter
    def parallel_devices(self, devices: Sequence[Any] | None) -> None:
        self._parallel_devices = [torch.device("ipu", i) for i in range(len(devices or ()))]

    @property
    def precision_plugin(self) -> Any:
        """Which types steps compute in."""
        plugin = self.__dict__.get("_ipu_precision") or self.__dict__.get("_precision_plugin")
        return plugin if plugin is not None else precision_class(self.namespace)()

    @precision_plugin.setter
    def precision_plugin(self, plugin: Any) -> None:
        self.__dict__["_ipu_precision"] = as_ipu_precision(plugin, self.namespace)

    @property
    def root_device(self) -> torch.device:
        """Tensors live on the host."""
        return torch.device("cpu")

    # Setting up

    def setup_environment(self) -> None:
        """Check what must be known before the model is set up."""
        super().setup_environment()  # type: ignore[misc]
        if self.num_nodes != 1:
            self._misconfigured(
                f"num_nodes={self.num_nodes}: IPU training runs in one process",
                "remove num_nodes, or use devices=N for N replicas",
            )

    def setup(self, trainer: Any) -> None:
        """Prepare for a fit or an evaluation."""
        module = self.lightning_module
        check_is_python(module)
        if self._programs is None or self._programs.module is not module:
            self._programs = Programs(module, self.namespace.module_names())
        self._follow_half(module)
        super().setup(trainer)  # type: ignore[misc]
        self._in_step.clear()
        self._eager.clear()
        self._programs.begin()
        self._programs.profile = trainer.profiler.profile
        self._programs.tell = self._say if self._debug else None
        self._programs.at_once = trainer.state.fn == "fit" and trainer.ckpt_path is not None
        self._choose_mode(trainer)
        self._programs.observers = observing(self.namespace, trainer.callbacks)
        self.warn_of_contradictions()
        self._tell()

    def _follow_half(self, module: Any) -> None:
        """`model.half()`: weights in half are computed in half, whatever the flag says."""
        wanted = precision_of_weights(module)
        if wanted is not None and isinstance(self.precision_plugin, IPUPrecisionMembers):
            self.precision_plugin = precision_class(self.namespace)(wanted)

    def _choose_mode(self, trainer: Any) -> None:
        fitting = trainer.state.fn == "fit" and self.lightning_module.automatic_optimization
        self.mode_reasons = reasons_to_split(self, trainer) if fitting else []
        options = self.training_opts
        must = options.device_iterations > 1 or options.Training.gradient_accumulation > 1
        if fitting and (must or self._step_mode == FUSED):
            if self.mode_reasons:
                self._misconfigured(
                    "one call runs whole updates (device_iterations="
                    f"{options.device_iterations}, step_mode={self._step_mode!r}), so these cannot "
                    f"run in between: {', '.join(self.mode_reasons)}",
                    "use device_iterations=1 and step_mode='split', or remove them",
                )
            self.mode = FUSED
        elif self._step_mode == "auto" and fitting and not self.mode_reasons:
            self.mode_reasons = list(reasons_to_rather_split(self))
            self.mode = SPLIT if self.mode_reasons else FUSED
        else:
            self.mode = SPLIT

    def _tell(self) -> None:
        options = self.training_opts if self.mode == FUSED else self._stage_options()
        count, iterations = options.replication_factor, options.device_iterations
        line = (
            f"IPU: {count} replica{'s' * (count > 1)} × {iterations} device "
            f"iteration{'s' * (iterations > 1)}, {self.mode} steps, "
            f"engine {options.engine_name}, precision {self.precision_plugin.precision}"
        )
        self._say(line)

    def _say(self, line: str) -> None:
        self.namespace.find("utilities.rank_zero:rank_zero_info")(line)

    def _misconfigured(self, what: str, fix: str) -> None:
        kind = self.namespace.find("utilities.exceptions:MisconfigurationException")
        raise kind(f"{what}. Fix: {fix}.")

    def process_dataloader(self, dataloader: Any) -> Any:
        """One batch for each call: a micro-batch for every replica and device iteration."""
        trainer = self.lightning_module._trainer
        training = trainer.training
        options = self.training_opts if training else self.inference_opts
        count = options.replication_factor * options.device_iterations
        if training:
            count *= options.Training.gradient_accumulation
        given = self._given_training if training else self._given_inference
        made = combined(dataloader, count, training=training, options=given)
        return resumable(made) if training and self._exact_resume else made

    def save_checkpoint(self, checkpoint: Any, *args: Any, **kwargs: Any) -> None:
        """An ordinary checkpoint, with the gradients of an accumulation that is not complete."""
        trainer = self.lightning_module._trainer
        if self._exact_resume and trainer.training and trainer.accumulate_grad_batches != 1:
            accumulating = trainer.fit_loop._should_accumulate()
            save_gradients(checkpoint, self.lightning_module, accumulating=accumulating)
        super().save_checkpoint(checkpoint, *args, **kwargs)  # type: ignore[misc]

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """As always; gradients that were saved are put back."""
        super().load_optimizer_state_dict(checkpoint)  # type: ignore[misc]
        self._saved_gradients = checkpoint.get(GRADIENTS)

    # Steps

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs of the user's step; gradients, or the update, are computed on the way."""
        if self._saved_gradients:
            put_gradients_back(self._saved_gradients, self.lightning_module)
            self._saved_gradients = None
        if self._runs_eagerly("training_step", args, kwargs) or self._skips_backward():
            return super().training_step(*args, **kwargs)  # type: ignore[misc]
        if not self.lightning_module.automatic_optimization:
            return self._compiled("training_step", args, self._manual_step)
        if self.mode == FUSED:
            try:
                return self._compiled("training_step", args, self._fused_step)
            except NotFused as why:
                self._split_because(why)
        return self._compiled("training_step", args, self._split_step)

    def _split_because(self, why: Exception) -> None:
        """Go on with split steps, if that is not against the user's wish."""
        if self._must_be_fused:
            raise CaptureError(
                f"{why}, and the update is part of the program",
                fix="return the loss, or use IPUStrategy(step_mode='split'), device_iterations=1",
            )
        self.mode, self.mode_reasons = SPLIT, [str(why)]

    @property
    def _must_be_fused(self) -> bool:
        options = self.training_opts
        calls = options.device_iterations * options.Training.gradient_accumulation
        return self._step_mode != "auto" or calls > 1

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs of the user's step."""
        return self._evaluate("validation_step", args, kwargs, "val_step_context")

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs of the user's step."""
        return self._evaluate("test_step", args, kwargs, "test_step_context")

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Outputs of the user's step."""
        return self._evaluate("predict_step", args, kwargs, "predict_step_context")

    def _skips_backward(self) -> bool:
        """An epoch in which only batch norms are updated (weight averaging) runs eagerly."""
        loop = self.lightning_module._trainer.fit_loop.epoch_loop
        return bool(loop.automatic_optimization._skip_backward)

    def _runs_eagerly(self, step: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        if step in self._eager:
            return True
        if not is_function(getattr(self.lightning_module, step)):
            logger.warning("%s runs on the CPU: it is no function of Python", step)
            self._eager.add(step)
            return True
        if kwargs or not args or hasattr(args[0], "__next__"):
            if self._fallback != "eager":
                raise CaptureError(
                    f"{step} takes an iterator over the data; a compiled step takes a batch",
                    fix=f"define {step}(self, batch, batch_idx), or pass fallback='eager'",
                )
            return True
        return False

    def _compiled(self, step: str, args: Sequence[Any], run: Callable[[Sequence[Any]], Any]) -> Any:
        begin = perf_counter()
        try:
            return run(args)
        except (CaptureError, OptimizerError) as error:
            if self._fallback != "eager":
                error.fix = f"{error.fix}; or run {step} on the CPU: IPUStrategy(fallback='eager')"
                raise
            logger.warning("%s cannot be compiled and runs on the CPU: %s", step, error.message)
            self._eager.add(step)
            self.mode = SPLIT
            return getattr(super(), step)(*args)
        finally:
            self._counts["calls"] += 1
            self._counts["seconds"] += perf_counter() - begin

    def _surroundings(self) -> Any:
        trainer = self.lightning_module._trainer
        return (trainer.state.stage, self.precision_plugin.precision, torch.get_default_dtype())

    # Evaluation

    def _evaluate(
        self, step: str, args: Sequence[Any], kwargs: Mapping[str, Any], context: str
    ) -> Any:
        if self._runs_eagerly(step, args, kwargs):
            return getattr(super(), step)(*args, **kwargs)

        def run(args: Sequence[Any]) -> Any:
            assert self._programs is not None
            options = self.inference_opts
            parts = parts_of(args[0], options.replication_factor * options.device_iterations)
            plugin = self.precision_plugin
            kind = Kind(
                "inference",
                parts,
                lambda _: getattr(plugin, context)(),
                no_more,
                self._make_inference,
                self._surroundings(),
            )
            return self._programs.run(step, kind, args).replay()

        return self._compiled(step, args, run)

    def _make_inference(self, function: Any, parts: int, name: str) -> StepProgram:
        options = self._program_options(training=False, parts=parts)
        return StepProgram(function, self.lightning_module, options, name=name)

    # Training, split

    def _split_step(self, args: Sequence[Any]) -> Any:
        assert self._programs is not None
        module = self.lightning_module
        parts = self.training_opts.replication_factor
        scaler = getattr(self.precision_plugin, "scaler", None)
        scale = 1.0 if scaler is None else float(scaler.get_scale())
        kind = Kind(
            "gradients",
            parts,
            self._training_context,
            partial(gradients_of, self.lightning_module),
            self._make_gradients,
            self._surroundings(),
        )
        run = self._programs.run(
            "training_step", kind, args, [torch.full((parts,), scale, dtype=torch.float32)]
        )
        result = run.replay()
        names: list[str] | None = run.note.more
        if names is None:
            return result
        named = dict(module.named_parameters())
        parameters = [named[name] for name in names]
        gradients = averaged(run.more, parameters, parts)
        if module._trainer._detect_anomaly:
            check_finite(names, gradients)
        loss = result["loss"] if isinstance(result, Mapping) else result
        loss = bridge(loss, gradients, parameters, scale)
        return {**result, "loss": loss} if isinstance(result, Mapping) else loss

    @contextmanager
    def _training_context(self, _: Inside) -> Iterator[None]:
        with torch.enable_grad(), self.precision_plugin.train_step_context():
            yield

    def _make_gradients(self, function: Any, parts: int, name: str) -> StepProgram:
        options = self._program_options(training=True, parts=parts)
        return StepProgram(function, self.lightning_module, options, name=name)

    # Training, fused

    def _fused_step(self, args: Sequence[Any]) -> Any:
        assert self._programs is not None
        options = self.training_opts
        iterations, steps = options.device_iterations, options.Training.gradient_accumulation
        kind = Kind(
            "fused",
            iterations * steps * options.replication_factor,
            self._training_context,
            marked_loss,
            self._make_fused,
            (self._surroundings(), self._clipping()),
        )
        try:
            run = self._programs.run("training_step", kind, args)
        except OptimizerError as error:
            if self._must_be_fused:
                raise
            raise NotFused(error.message) from error
        self.optimizer_updates += iterations
        return run.replay()

    def _make_fused(self, function: Any, parts: int, name: str) -> StepProgram:
        options = self._program_options(training=True, parts=parts)
        optimizer = clipped(self.optimizers[0], *self._clipping())
        return StepProgram(function, self.lightning_module, options, name=name, optimizer=optimizer)

    def _clipping(self) -> tuple[Any, Any]:
        trainer = self.lightning_module._trainer
        return trainer.gradient_clip_val, trainer.gradient_clip_algorithm

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """Let the optimizer step; in fused mode the program did."""
        if self.mode == SPLIT:
            self.optimizer_updates += self.lightning_module.automatic_optimization
            # The reference engine keeps the bits of the host's kernels.
            quick = self.training_opts.engine_name != "reference"
            with fast_kernels(optimizer) if quick else nullcontext():
                return super().optimizer_step(optimizer, closure, model, **kwargs)  # type: ignore[misc]
        result = closure()  # there is no hook that would look at gradients
        if self.mode == SPLIT:  # from this step on
            self.precision_plugin._after_closure(self.lightning_module, optimizer)
            optimizer.step()
            self.optimizer_updates += 1
        return result

    def __getstate__(self) -> dict[str, Any]:
        """Without programs: they are made again where they are needed."""
        return {**vars(self), "_programs": None, "_in_step": {}, "_defaults": None}

    def teardown(self) -> None:
        """Let go of the programs."""
        self._forget()
        super().teardown()  # type: ignore[misc]

    def _forget(self) -> None:
        self._in_step.clear()
        if self._programs is not None:
            self._programs.forget()

    @classmethod
    def register_strategies(cls, registry: Any) -> None:
        """Make the name known to a registry of Lightning."""
        what = "Steps as compiled programs"
        registry.register(cls.strategy_name, cls, what, override=True)
        told = f"{what}; says what is compiled, and why"
        registry.register("ipu_debug", cls, told, override=True, debug=True)


@cache
def strategy_class(namespace: Namespace) -> Any:
    """`IPUStrategy` for one namespace."""
    base = namespace.find("strategies.parallel:ParallelStrategy")
    return made_class("IPUStrategy", strategy_class, namespace, IPUStrategyMembers, base)
