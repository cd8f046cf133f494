"""Compilation of one signature: hooks, capture, passes, lowering, with progress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from pantile.capture.signature import Bound, Signature
from pantile.errors import CaptureError, StateError
from pantile.logging import logger
from pantile.lowering.reference import ReferenceExecutable
from pantile.ops.hooks import run_post_compile_hooks, run_pre_compile_hooks
from pantile.options import Options
from pantile.passes.pipeline import run_passes
from pantile.program.spec import InputKind
from pantile.runtime.compiled import Compiled
from pantile.runtime.progress import CompileProgress
from pantile.runtime.reduction import Reduction
from pantile.runtime.replica_groups import ReplicaGroups
from pantile.runtime.training import OptimizerControl
from pantile.runtime.weights import Weights

if TYPE_CHECKING:
    from pantile.capture.forward import Captured


class Compiler:
    """Compiles the signatures of one executor."""

    def __init__(self, module: nn.Module, options: Options, *, training: bool) -> None:
        self._module = module
        self._options = options
        self._training = training
        self.progress = CompileProgress(shown=options.show_compilation_progress_bar)
        self.flags: tuple[bool, ...] = ()
        if options.engine_name != "reference":
            logger.info("this version has the reference engine only: %s", options.engine_name)

    def read_flags(self) -> None:
        """Take the module's train/eval flags for programs compiled from now on."""
        self.flags = tuple(m.training for m in self._module.modules())

    def compile(
        self,
        bound: Bound,
        signature: Signature,
        example: Sequence[torch.Tensor],
        weights: Weights,
        *,
        scaled: bool,
    ) -> Compiled:
        """Capture and lower the model for these arguments."""
        # Tracing needs half a second of imports (sympy): at the first compilation, not before.
        from pantile.capture.forward import Request, capture

        if not self.flags:
            self.read_flags()
        run_pre_compile_hooks()
        name = "training" if self._training else "inference"
        try:
            with self.progress.compiling(name), self._with_flags():
                self.progress.phase("capture", 5)
                captured = capture(
                    Request(
                        self._module,
                        self._module,
                        weights.device_state(),
                        bound.structure,
                        example,
                        bound.names,
                        training=self._training,
                        strict=self._options.is_strict,
                        loss_scaling=scaled,
                    )
                )
                self.progress.phase("passes", 70)
                program = run_passes(captured.program)
                self._check_writes(captured, weights)
                self.progress.phase("lowering", 85)
                executable = ReferenceExecutable(program)
        finally:
            run_post_compile_hooks()
        return Compiled(signature, bound.values, captured, executable, self.flags)

    @contextmanager
    def _with_flags(self) -> Iterator[None]:
        """Capture with the train/eval flags of the first compilation."""
        modules = list(self._module.modules())
        before = [m.training for m in modules]
        for module, flag in zip(modules, self.flags, strict=True):
            module.training = flag
        try:
            yield
        finally:
            for module, flag in zip(modules, before, strict=True):
                module.training = flag

    def _check_writes(self, captured: Captured, weights: Weights) -> None:
        written = [
            entry.name
            for entry, _ in captured.program.writes
            if entry.kind in (InputKind.PARAMETER, InputKind.BUFFER)
        ]
        options = self._options
        if options.is_strict and written and options.replication_factor > 1:
            if options.broadcast_buffers:
                raise CaptureError(
                    "PopTorch does not support broadcasting buffers that the model modifies: "
                    + ", ".join(written),
                    fix="set Options.broadcastBuffers(False): each replica then has its own",
                )
        weights.written(written)
        if options.exists("updatable_named_buffers"):
            known = {e.name for e in weights.state.of_kind(InputKind.BUFFER)}
            unknown = [n for n in options.updatable_named_buffers if n not in known]
            if unknown:
                raise StateError(
                    f"updatableNamedBuffers names {unknown}, which are not buffers of the model",
                    fix=f"choose from {sorted(known)}",
                )

    def reduction(self, groups: ReplicaGroups, control: OptimizerControl | None) -> Reduction:
        """How gradients are reduced, with the strategy as the optimizer demands it."""
        return Reduction.of(
            self._options,
            None if control is None else control.accumulator_type,
            groups.grouping(),
            running=control is not None and control.needs_running_mean,
        )
