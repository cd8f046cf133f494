"""Record forward, loss and gradients of one micro-batch as a Program.

    forward(fake args)  ──make_fx──►  ATen graph, with in-place ops
                        ──functionalise──►  functional graph + `copy_` epilogue  =  Program

Two passes, because functionalisation around `requires_grad_()` raises. Nothing is decomposed: the
reference engine must call the very kernels that eager calls. See docs/internals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses import FakeTensor
from torch.fx import traceback as fx_traceback
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, make_fx
from torch.utils._python_dispatch import _disable_current_modes

from pantile.capture.checkpoint import no_recomputation
from pantile.capture.device_norms import DeviceNorms
from pantile.capture.explain import explained
from pantile.capture.fake import HostConstants, fake_like, fake_mode
from pantile.capture.fast_paths import fast_paths
from pantile.capture.hints import Hint, check_overlap_marks, settled_hints
from pantile.capture.loss import Seen, choose_loss
from pantile.capture.module_state import ModuleState, check_overlap, exchanged
from pantile.capture.own_metadata import own_metadata
from pantile.capture.rebound import Attributes, check_constants, settle_state
from pantile.capture.recorder import CaptureRecorder
from pantile.capture.redirect import redirected
from pantile.capture.rewrite import functional_program, safe_decompositions
from pantile.capture.saved_buffers import OVERWRITTEN, keep_old_values
from pantile.capture.scopes import module_scopes
from pantile.capture.source import record_places
from pantile.capture.watch import Watch
from pantile.ops.context import recording
from pantile.program.program import Program
from pantile.program.spec import Input, InputKind, Output, OutputKind, TensorSpec
from pantile.program.structure import Structure, flatten, leaf_names, unflatten
from pantile.program.tracing import TRACER_LOCK


@dataclass(frozen=True, eq=False)
class Captured:
    """A Program and how its user outputs form what forward returned.

    `leaves` holds, for each tensor forward returned, the index of its USER output, or the tensor
    itself when it is a constant of the host.
    """

    program: Program
    structure: Structure
    leaves: tuple[int | torch.Tensor, ...]
    blocks: tuple[tuple[str, int | None], ...] = ()
    loss: int | None = None
    activations: tuple[int, ...] = ()
    hints: tuple[Hint, ...] = ()


@dataclass(frozen=True, eq=False)
class Request:
    """What to capture: a callable over a module's state, and one micro-batch of arguments."""

    call: Callable[..., Any]
    module: nn.Module
    state: ModuleState
    structure: Structure
    arguments: Sequence[torch.Tensor]
    names: Sequence[str]
    training: bool
    strict: bool = False
    strided_groups: bool = False  # of the channels of a group norm; only in strict mode
    loss_scaling: bool = False
    module_names: bool = True
    constants: Mapping[str, Any] = field(default_factory=dict)
    keeps_buffers: bool = False  # old values of buffers, for gradients that need them

    @property
    def given(self) -> dict[str, Any]:
        """All arguments by name, tensors first."""
        return {**dict(zip(self.names, self.arguments, strict=True)), **self.constants}


LOSS_SCALING = Input("loss_scaling", InputKind.HYPER, TensorSpec((), torch.float32))


class _Trace:
    """The state of one capture."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.mode = fake_mode()
        self.recorder = CaptureRecorder(strict=request.strict, training=request.training)
        self.result: Structure | None = None
        self.leaves: list[int | torch.Tensor] = []
        self.outputs: list[Output] = []
        self.loss_index: int | None = None
        self.checkpoints: frozenset[str] = frozenset()
        self.hints: tuple[Hint, ...] = ()
        # Sliced here, outside the trace: inside it, the slice would become a node of the graph.
        self.real = [*(e.seen for e in request.state.entries), *request.arguments]

    def inputs(self) -> list[Input]:
        request = self.request
        found = [Input(e.name, e.kind, e.spec) for e in request.state.entries]
        pairs = zip(request.names, request.arguments, strict=True)
        found += [Input(name, InputKind.ARGUMENT, TensorSpec.of(t)) for name, t in pairs]
        if request.loss_scaling:
            found.append(LOSS_SCALING)
        return found

    def fakes(self, *, with_grad: bool) -> list[torch.Tensor]:
        """A fresh fake tensor for every input."""
        fakes = []
        for entry in self.request.state.entries:
            what = f"{entry.kind.value} {entry.name!r}"
            fake = fake_like(self.mode, entry.seen, what, in_place=True)
            if entry.dtype is not None:
                fake = fake.to(entry.dtype)
            if with_grad and entry.tensor.requires_grad:
                fake.requires_grad_()
                for hook in (getattr(entry.tensor, "_backward_hooks", None) or {}).values():
                    fake.register_hook(hook)  # type: ignore[no-untyped-call]
            if entry.kind is InputKind.PARAMETER:
                fake._is_param = True
            fakes.append(fake)
        pairs = zip(self.request.names, self.request.arguments, strict=True)
        fakes += [fake_like(self.mode, t, f"argument {name!r}") for name, t in pairs]
        if self.request.loss_scaling:
            fakes.append(fake_like(self.mode, torch.ones(()), "loss_scaling"))
        return fakes

    def run(self, *flat: torch.Tensor) -> list[torch.Tensor]:
        """The function that is traced: forward, loss, gradients."""
        request = self.request
        count = len(request.state.entries)
        state, arguments = flat[:count], flat[count : count + len(request.arguments)]
        by_id = {id(e.tensor): f for e, f in zip(request.state.entries, state, strict=True)}
        args, kwargs = unflatten(request.structure, arguments)
        norms = DeviceNorms(request.training, request.strided_groups)
        watch = Watch(by_id, strict=request.strict, norms=norms)
        scopes = self.recorder.scopes
        mode = get_proxy_mode()
        assert mode is not None
        scopes.follow(mode.tracer.graph)
        record_places(mode.tracer)
        with (
            exchanged(request.module, by_id),
            recording(self.recorder),
            module_scopes(scopes, request.module if request.module_names else None),
            no_recomputation(),
            fast_paths(self.real),
            redirected(watch),
            watch,
            torch.set_grad_enabled(request.training or request.strict),
            self._saving(state),
        ):
            attributes = Attributes(request.module)
            constants = HostConstants(attributes, moved=watch.moved if request.strict else None)
            with constants:
                result = request.call(*args, **kwargs)
                (result,), _ = watch.exchanged((result,), {})
            settle_state(request.module, request.state.entries, by_id, strict=request.strict)
            if not request.strict:
                attributes.check(constants.used)
            self.recorder.close()
        kept = [t for t, kind, _ in self.recorder.hints if kind == "recompute_checkpoint"]
        self.checkpoints = frozenset(seen.node.name for seen in _seen(kept))
        returned = self._collect(result)
        self._settle_hints(returned)
        if not request.training:
            return returned
        with torch.enable_grad():
            return returned + self._gradients(watch, returned, state, flat)

    def _saving(self, state: Sequence[torch.Tensor]) -> AbstractContextManager[Any]:
        if not self.request.keeps_buffers:
            return nullcontext()
        return keep_old_values(fake for fake in state if not fake.requires_grad)

    def _collect(self, result: Any) -> list[torch.Tensor]:
        """Note how the outputs are nested; return the ones the graph computes."""
        tensors, self.result = flatten(result)
        names = leaf_names(self.result, "out")
        returned: list[torch.Tensor] = []
        for name, tensor in zip(names, tensors, strict=True):
            if not isinstance(tensor, FakeTensor):
                with _disable_current_modes():
                    self.leaves.append(tensor.detach().clone())
                continue
            self.leaves.append(len(returned))
            self.outputs.append(Output(name, OutputKind.USER, TensorSpec.of(tensor)))
            returned.append(tensor)
        return returned

    def _settle_hints(self, returned: list[torch.Tensor]) -> None:
        marked = self.recorder.hints
        if not marked:
            return
        if self.request.strict:
            check_overlap_marks(marked, returned, _node_of)
        self.hints = settled_hints(marked, _node_of)

    def _gradients(
        self,
        watch: Watch,
        returned: list[torch.Tensor],
        state: Sequence[torch.Tensor],
        flat: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        loss = choose_loss(
            _seen(self.recorder.marked_losses),
            _seen(watch.losses),
            _seen(returned),
            strict=self.request.strict,
        )
        matches = [i for i, t in enumerate(returned) if t is loss.tensor]
        self.loss_index = matches[0] if matches else None
        wanted = [
            (entry, fake)
            for entry, fake in zip(self.request.state.entries, state, strict=True)
            if entry.tensor.requires_grad
        ]
        if not loss.tensor.requires_grad or not wanted:
            return []
        seed = torch.ones_like(loss.tensor)
        if self.request.loss_scaling:
            seed = seed * flat[-1].to(seed.dtype)
        tag_backward(loss.tensor)
        gradients = torch.autograd.grad(
            loss.tensor, [fake for _, fake in wanted], seed, allow_unused=True
        )
        kept = []
        for (entry, _), gradient in zip(wanted, gradients, strict=True):
            if gradient is not None:
                self.outputs.append(
                    Output(entry.name, OutputKind.GRADIENT, TensorSpec.of(gradient))
                )
                kept.append(gradient)
        return kept


def capture(request: Request) -> Captured:
    """Record one micro-batch: `gradients` when training, else `inference`.

    A strict training that fails because a value was overwritten is recorded once more, with the old
    values of buffers: copies that few models need.
    """
    check_overlap(request.state)
    try:
        return _capture(request)
    except RuntimeError as error:
        if not (request.strict and request.training and OVERWRITTEN in str(error)):
            raise
    return _capture(replace(request, keeps_buffers=True))


def _capture(request: Request) -> Captured:
    with TRACER_LOCK:
        trace = _Trace(request)
        inputs = trace.inputs()
        explaining = explained(request.given, strict=request.strict)
        with explaining, own_metadata(), fx_traceback.preserve_node_meta():
            # Its code is never run, only its graph.
            lazy = _use_lazy_graph_module(True)
            with lazy, trace.mode, _plain_state():
                recorded = make_fx(
                    trace.run,
                    decomposition_table=safe_decompositions(),
                    _disable_torch_fn_metadata_mode=True,
                )(*trace.fakes(with_grad=True))  # matmul asks, in inference too
            check_constants(recorded, request.state)
            program = functional_program(
                recorded,
                lambda: trace.fakes(with_grad=False),
                trace.mode,
                name="gradients" if request.training else "inference",
                inputs=inputs,
                outputs=trace.outputs,
                checkpoints=trace.checkpoints,
            )
    assert trace.result is not None
    return Captured(
        program,
        trace.result,
        tuple(trace.leaves),
        tuple(trace.recorder.blocks),
        trace.loss_index,
        tuple(trace.recorder.activations),
        trace.hints,
    )


def _seen(tensors: Sequence[torch.Tensor]) -> list[Seen]:
    """The graph node behind each tensor."""
    found = ((tensor, _node_of(tensor)) for tensor in tensors)
    return [Seen(tensor, node) for tensor, node in found if node is not None]


def _node_of(tensor: torch.Tensor) -> fx.Node | None:
    mode = get_proxy_mode()
    assert mode is not None
    node = get_proxy_slot(tensor, mode.tracer, None, lambda slot: slot.proxy.node)
    return node if isinstance(node, fx.Node) else None


def tag_backward(loss: torch.Tensor) -> None:
    """Let every backward node carry the sequence number of the forward op it belongs to."""
    from torch._functorch._aot_autograd.logging_utils import setup_stacktrace_preservation_hooks

    if loss.grad_fn is not None:
        setup_stacktrace_preservation_hooks([loss.grad_fn])


@contextmanager
def _plain_state() -> Iterator[None]:
    """Switch off argument checks that read values (torch.distributions)."""
    from torch.distributions import Distribution

    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)
