"""Compilation of one signature: hooks, capture, passes, lowering, with progress."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pantile.capture.operators import refuse_unsupported
from pantile.capture.signature import Bound, Signature, trailing_defaults, without
from pantile.errors import CaptureError, PlacementError, StateError
from pantile.ops.hooks import run_post_compile_hooks, run_pre_compile_hooks
from pantile.options import Options
from pantile.options.backend import check_backend_settings, check_overlap_options
from pantile.options.report import log_options
from pantile.passes.narrow_integers import narrow_integers
from pantile.passes.pipeline import run_passes
from pantile.program.program import Program
from pantile.program.spec import InputKind
from pantile.program.structure import Structure, flatten, unflatten
from pantile.runtime.anchors import Anchors
from pantile.runtime.compiled import Compiled, Variant
from pantile.runtime.dot_file import write_dot
from pantile.runtime.export_proto import export_program
from pantile.runtime.graph_log import log_graph
from pantile.runtime.numerics import Numerics, why_reference
from pantile.runtime.placement import Placement, check_placement, place_blocks, tag_stages
from pantile.runtime.placement_log import log_placement, log_sources
from pantile.runtime.progress import CompileProgress
from pantile.runtime.substitution import substituted
from pantile.runtime.weights import Weights

if TYPE_CHECKING:
    from pantile.capture.forward import Captured
    from pantile.runtime.pipeline.plan import Plan


class Compiler:
    """Compiles the signatures of one executor."""

    def __init__(
        self, module: nn.Module, options: Options, anchors: Anchors, *, training: bool
    ) -> None:
        self._module = module
        self._options = options
        self._training = training
        self._anchors = anchors
        self._numerics = Numerics.of(options)
        self.progress = CompileProgress(shown=options.show_compilation_progress_bar)

    def read_flags(self) -> tuple[bool, ...]:
        """The train/eval flags the module has now."""
        return tuple(m.training for m in self._module.modules())

    def compile(
        self,
        bound: Bound,
        example: Sequence[torch.Tensor],
        weights: Weights,
        variant: Variant,
    ) -> Compiled:
        """Capture and lower the model for these arguments."""
        if self._options.is_strict:
            check_backend_settings(self._options._Popart.options)
        log_options(self._options)
        run_pre_compile_hooks()
        name = "training" if self._training else "inference"
        try:
            with self.progress.compiling(name):
                self.progress.phase("capture", 5)
                captured = self._capture(bound, example, weights, variant)
                self.progress.phase("passes", 70)
                placement, program = self._placed(captured)
                if self._options.is_strict:
                    program = narrow_integers(program)
                program = run_passes(program)
                program = self._anchors.expose(program, loss=captured.loss)
                self._check(captured, program, weights)
                self.progress.phase("lowering", 85)
                executable = self._numerics.lowered(program)
                plan = self._plan(executable.program, placement)
        finally:
            run_post_compile_hooks()
        log_graph(program, self._options.Precision.partials_type, captured.hints)
        log_sources(program, self._options.source_location_excludes)
        strategy = self._options.execution_strategy
        log_placement(program, placement, captured.blocks, strategy, loss=captured.loss)
        export_program(program, self._options.Precision.partials_type)
        write_dot(program, self._options, name=name)
        weights.written(_written_state(captured))
        call = bound.outline()
        return Compiled(Signature.of(bound), call, captured, executable, variant, placement, plan)

    def _capture(
        self, bound: Bound, example: Sequence[torch.Tensor], weights: Weights, variant: Variant
    ) -> Captured:
        # Tracing needs half a second of imports (sympy): at the first compilation, not before.
        from pantile.capture.forward import Request, capture

        call, structure = _merged_call(self._module, bound)
        settings = self._options._Popart.options
        with self._with_flags(variant.flags), substituted():
            return capture(
                Request(
                    call,
                    self._module,
                    weights.device_state(),
                    structure,
                    example,
                    bound.names,
                    training=self._training,
                    strict=self._options.is_strict,
                    strided_groups=bool(settings.get("groupNormStridedChannelGrouping")),
                    loss_scaling=variant.scaled,
                    module_names=self._options.module_namescope,
                    constants={n: v for n, v in bound.values.items() if not flatten(v)[0]},
                )
            )

    @contextmanager
    def _with_flags(self, flags: tuple[bool, ...]) -> Iterator[None]:
        """Capture with the train/eval flags of the first compilation."""
        modules = list(self._module.modules())
        before = [m.training for m in modules]
        for module, flag in zip(modules, flags, strict=True):
            module.training = flag
        try:
            yield
        finally:
            for module, flag in zip(modules, before, strict=True):
                module.training = flag

    def _placed(self, captured: Captured) -> tuple[Placement, Program]:
        strict, strategy = self._options.is_strict, self._options.execution_strategy
        try:
            placement = place_blocks(captured.blocks, captured.activations, strategy, strict=strict)
            check_placement(placement, self._options, training=self._training)
        except PlacementError as error:
            raise self._with_costs(error, captured) from None
        return placement, tag_stages(captured.program, placement, strict=strict)

    def _plan(self, program: Program, placement: Placement) -> Plan | None:
        """How the program runs in stages, if it has more than one."""
        # What is looked at inside the step is looked at in the unsplit program, with its numbers.
        if placement.forward_stages == 1 or why_reference(self._options) is not None:
            return None
        from pantile.runtime.pipeline.costs import stage_costs, tell_balance
        from pantile.runtime.pipeline.plan import plan_stages

        plan = plan_stages(program, placement, self._options, training=self._training)
        if plan is not None:
            tell_balance(stage_costs(plan.split, placement), strict=self._options.is_strict)
        return plan

    def _with_costs(self, error: PlacementError, captured: Captured) -> PlacementError:
        """An impossible placement, with what its stages cost."""
        strategy = self._options.execution_strategy
        placement = place_blocks(captured.blocks, captured.activations, strategy, strict=False)
        if placement.forward_stages == 1:
            return error
        from pantile.passes.split_stages import split_stages
        from pantile.runtime.pipeline.costs import cost_table, stage_costs

        program = tag_stages(captured.program, placement, strict=False)
        split = split_stages(program, placement.forward_stages, training=self._training)
        table = cost_table(stage_costs(split, placement))
        return PlacementError(f"{error.message}\n{table}", fix=error.fix)

    def _check(self, captured: Captured, program: Program, weights: Weights) -> None:
        options = self._options
        if options.is_strict:
            check_overlap_options(options, [h.kind for h in captured.hints if h.overlaps])
            _check_zero_sized(program)
            refuse_unsupported(captured.program)
            _warn_of_host_outputs(captured)
            written = _written_state(captured)
            if written and options.replication_factor > 1 and options.broadcast_buffers:
                raise CaptureError(
                    "PopTorch does not support broadcasting buffers. The model modifies "
                    + ", ".join(written),
                    fix="set poptorch.Options.broadcastBuffers(False): each replica then has one",
                )
        if options.exists("updatable_named_buffers"):
            known = {e.name for e in weights.state.of_kind(InputKind.BUFFER)}
            unknown = [n for n in options.updatable_named_buffers if n not in known]
            if unknown:
                raise StateError(
                    f"updatableNamedBuffers names {unknown}, which are not buffers of the model",
                    fix=f"choose from {sorted(known)}",
                )


def _merged_call(module: nn.Module, bound: Bound) -> tuple[Callable[..., Any], Structure]:
    """How to call the module with each tensor once, also where one was passed twice."""
    defaults = trailing_defaults(module.forward)

    def plain(*args: Any, **kwargs: Any) -> Any:
        return module(*without(defaults, args), **kwargs)

    if bound.places == tuple(range(len(bound.tensors))):
        return plain, bound.structure

    def call(*tensors: torch.Tensor) -> Any:
        args, kwargs = unflatten(bound.structure, [tensors[place] for place in bound.places])
        return plain(*args, **kwargs)

    return call, flatten((bound.tensors, {}))[1]


def _written_state(captured: Captured) -> list[str]:
    kinds = (InputKind.PARAMETER, InputKind.BUFFER)
    return [entry.name for entry, _ in captured.program.writes if entry.kind in kinds]


def _check_zero_sized(program: Program) -> None:
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.numel() == 0 and not _is_workspace(node):
            raise CaptureError(
                f"Zero-sized tensors are unsupported (Got shape {list(value.shape)}): {node.name}",
                fix="avoid empty tensors, or leave strict mode",
            )


def _is_workspace(node: torch.fx.Node) -> bool:
    """Whether it is what an LSTM keeps for its gradient, whose size nobody knows before it runs."""
    source = node.args[0] if node.target is operator.getitem else None
    lstm = torch.ops.aten.mkldnn_rnn_layer.default
    place = node.args[1:2]
    return isinstance(source, torch.fx.Node) and source.target is lstm and place == (3,)


def _warn_of_host_outputs(captured: Captured) -> None:
    for leaf in captured.leaves:
        if isinstance(leaf, torch.Tensor):
            warnings.warn(
                f"Output expected to be on the IPU but is on cpu: a tensor of shape "
                f"{list(leaf.shape)} is returned as a constant",
                stacklevel=2,
            )
