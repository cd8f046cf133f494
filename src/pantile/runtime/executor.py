"""`PoplarExecutor`: what `trainingModel` and `inferenceModel` return.

    created ──compile/call──► compiled, attached ◄──attach/call── compiled, detached
       ▲                        │ destroy    └──detach──►               │ destroy
       └────────────────────────┴───────────────────────────────────────┘

A call: bind the arguments → compile if the signature is new → attach → refresh weights → run →
rebuild what forward returned. A call with plain tensors of known shapes skips the first steps.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pantile.capture.module_state import ModuleState
from pantile.capture.signature import Binder, Bound, Signature, explain_mismatch
from pantile.enums import ConnectionType, OutputMode
from pantile.errors import Error, StateError
from pantile.logging import logger
from pantile.options import Options
from pantile.program.garbage import forget_source_lines, uncollected
from pantile.program.tracing import TRACER_LOCK
from pantile.runtime import instrument, observe, ownership
from pantile.runtime.anchors import Anchors
from pantile.runtime.compile import Compiler
from pantile.runtime.compiled import Compiled, Variant, find
from pantile.runtime.counters import StepTimes
from pantile.runtime.device_claims import claim_device, offline_error, release_device
from pantile.runtime.engines import MISS, Engines
from pantile.runtime.exports import Exports
from pantile.runtime.inputs import InputReader, Slicing
from pantile.runtime.introspection import Introspection
from pantile.runtime.optimizer import Update
from pantile.runtime.outputs import Batching, check_period, finished
from pantile.runtime.own_copies import own_options, shallow_copy
from pantile.runtime.random import RandomStreams
from pantile.runtime.reduction import Reduction
from pantile.runtime.replica_groups import ReplicaGroups
from pantile.runtime.routes import Routes
from pantile.runtime.step import Machine, Step
from pantile.runtime.synthetic import SyntheticData, not_transferred
from pantile.runtime.training import OptimizerControl
from pantile.runtime.weights import Weights
from pantile.store.cache import Entry

if TYPE_CHECKING:
    from pantile.runtime.hot_call import HotCall
    from pantile.runtime.native.engine import NativeEngine

_MANY_PROGRAMS = (16, 64, 256, 1024)


class PoplarExecutor(Engines, Exports, Introspection):
    """Runs a model as a static program on software IPUs. Call it like the model."""

    def __init__(
        self,
        model: nn.Module,
        options: Options | None,
        *,
        training: bool,
        optimizer: torch.optim.Optimizer | None = None,
        user_model: nn.Module | None = None,
        poptorch_version: str = "",
    ) -> None:
        self._training = training
        self._options = own_options(options or Options(), training=training)
        self._strict: bool = self._options.is_strict
        self._mode = OutputMode(self._options.output_mode)
        self._batching = Batching(
            self._options.device_iterations,
            self._options.Training.gradient_accumulation,
            self._options.replication_factor,
        )
        check_period(self._mode, self._options.output_return_period, self._batching)
        # Clients that call the model in a way of their own give that, and the model itself.
        self._user_model = user_model or model
        self._model = shallow_copy(model) if user_model is None else model
        self._binder = Binder(self._model.forward, merge=not self._options.pins_signature)
        seed = self._options.random_seed if self._options.exists("random_seed") else None
        self._random = RandomStreams(seed, self._batching.replicas)
        self._times = StepTimes()
        reader = InputReader(Slicing.of(self._options), strict=self._strict)
        anchors = Anchors.of(self._options, self._batching)
        self._machine = Machine(self._batching, reader, self._random, self._times, anchors)
        self._groups = ReplicaGroups(self._batching.replicas)
        self._compiler = Compiler(self._model, self._options, anchors, training=training)
        self._timeline = self._compiler.progress.timeline
        self._control = OptimizerControl(self._options) if training else None
        self._flags: tuple[bool, ...] | None = None
        self._compiled: list[Compiled] = []
        self._routes = Routes(self._binder)
        self._weights: Weights | None = None
        self._native: NativeEngine | None = None
        self._hot: HotCall | None = None
        self._offered: list[Entry] = []
        self._synthetic = SyntheticData() if self._options.synthetic_data else None
        self._update: Update | None = None
        self._reduction: tuple[Any, Reduction] | None = None
        self._attached = self._dirty = False
        self._lock = threading.RLock()
        self._host_version = _HostVersion()
        self._linked = not training and instrument.owner_of(model) is not None
        self._seen: tuple[_HostVersion, int] = (self._host_version, 0)
        if training:
            self._wrap(optimizer)

    def _wrap(self, optimizer: torch.optim.Optimizer | None) -> None:
        assert self._control is not None
        instrument.check_buffers(self._user_model)
        if optimizer is None:
            # torch refuses an empty list; a model without parameters may run all the same.
            parameters: list[torch.Tensor] = [*self._user_model.parameters()] or [torch.zeros(0)]
            optimizer = torch.optim.SGD(parameters, lr=0.01)
        self._control.set(optimizer, compiled=False)
        ownership.claim(self._user_model, self, offer_destroy=not self._strict)
        if self._strict:
            try:
                instrument.instrument(self._user_model, self)
            except Error:
                ownership.release(self._user_model, self)
                raise

    def __del__(self) -> None:
        # Trained weights that only the device has must not be lost with it.
        if self.__dict__.get("_dirty") and not sys.is_finalizing():
            self.copyWeightsToHostIfNeeded()

    # Calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step: the arguments hold `B * D * G * R` samples on dim 0."""
        hot = self._hot
        if hot is not None and not kwargs:
            # The previous call with other values, if that is all that is different.
            with hot.lock:
                if self._hot is hot:
                    result = hot.call(args)
                    if result is not MISS:
                        return result
                    self._hot = None
        if self._options.connection_type == ConnectionType.Never:
            raise offline_error("Trying to run a model on an offline device")
        self._check_cycle_count()
        if torch.is_inference_mode_enabled():
            # State made inside inference mode could not be updated outside.
            with torch.inference_mode(False), torch.no_grad():
                return self._call(args, kwargs)
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._lock, self._timeline.call(self._times):
            self._hot = None
            compiled, tensors = self._prepared(args, kwargs)
            if self._synthetic is not None:
                tensors = self._synthetic.arguments(tensors)
            if not self._attached:
                self.attachToDevice()
            self._refresh_weights()
            if compiled.variant.autocast is None:
                return self._run(compiled, tensors)
            # The casts are part of the program.
            with torch.autocast("cpu", enabled=False):
                return self._run(compiled, tensors)

    def _run(self, compiled: Compiled, tensors: Sequence[torch.Tensor]) -> Any:
        assert self._weights is not None
        collector = self._new_collector()
        fed = self._machine.reader.prepare(compiled.call.names, tensors)
        step = Step(self._machine, self._weights, compiled, fed, collector)
        if self._training:
            assert self._update is not None and self._control is not None
            self._control.before_run()
            # Also when an op fails in the middle: what was updated until then must not be lost.
            self._dirty = self._resident
            step.train(self._update, self._current_reduction(), self._native)
            self._control.after_run()
        else:
            step.infer(self._native)
        self._weights.after_step()
        if isinstance(tensors, tuple) and not self._timeline.records_calls:  # arguments as given
            self._hot = self._hot_call(compiled, tensors, step.native_whole)
        for index in compiled.written_arguments:
            if fed[index] is not tensors[index]:
                with torch.no_grad():
                    tensors[index].copy_(fed[index])
        self._log_cycle_count()
        results = collector.gathered()
        if self._synthetic is not None:
            results = not_transferred(results)
        outputs = [finished(tensor, strict=self._strict) for tensor in results]
        return compiled.rebuild(outputs)

    # Compiling

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for these arguments without running."""
        with self._lock:
            if self._compiled and self._options.pins_signature:
                logger.warning("The model is already compiled: compile() is ignored.")
                return
            compiled, tensors = self._prepared(args, kwargs)
            self._compile_natively(compiled, tensors, wait=True)
            if not self._attached and self._options.connection_type == ConnectionType.Always:
                self.attachToDevice()

    def _prepared(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Compiled, Sequence[torch.Tensor]]:
        """The program for a call, compiled now if the call is of a new kind, and its tensors."""
        if self._weights is not None and not self._weights.refresh():
            self._look_again(self._weights)
        variant = self._variant()
        known = self._routes.find(args, kwargs, variant)
        if known is not None:
            return known
        bound = self._binder.bind(args, kwargs)
        before = len(self._compiled)
        compiled, bound = self._compiled_for(bound, variant)
        if len(self._compiled) > before:
            self._start_native(compiled, bound.tensors)
        self._routes.remember(args, kwargs, bound, compiled)
        return compiled, bound.tensors

    def _look_again(self, weights: Weights) -> None:
        """The model holds other tensors: forget its programs, unless they were only exchanged.

        While another executor captures the same model, on another thread, it holds fake ones.
        """
        with TRACER_LOCK:
            if not weights.refresh():
                self._forget_programs()

    def _variant(self) -> Variant:
        flags = self._flags if self._flags is not None else self._compiler.read_flags()
        adapts = self._training and self._options.Training.automatic_loss_scaling
        scaled = adapts or (self._control is not None and self._control.loss_scaling != 1.0)
        if self._strict and self._compiled:
            scaled = self._compiled[0].variant.scaled
        autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        return Variant(flags, scaled, autocast, adapts)

    def _compiled_for(self, bound: Bound, variant: Variant) -> tuple[Compiled, Bound]:
        found = find(self._compiled, Signature.of(bound), variant)
        if found is not None:
            return found, bound
        for known in self._compiled:
            aligned = self._binder.align(known.call, bound)
            found = find([known], Signature.of(aligned), variant)
            if found is not None:
                return found, aligned
        if self._compiled and self._options.pins_signature:
            raise explain_mismatch(self._compiled[0].call, bound)
        self._machine.reader.check(bound)
        self._compiled.append(self._compile(bound, variant))
        if len(self._compiled) in _MANY_PROGRAMS:
            logger.warning(
                "%d programs were compiled for different arguments. A Python number that changes "
                "from call to call is best passed as a tensor.",
                len(self._compiled),
            )
        return self._compiled[-1], bound

    def _compile(self, bound: Bound, variant: Variant) -> Compiled:
        claim_device(self, self._options)
        self._pull_from_others()
        self._build_ahead()
        model = self._user_model
        with (
            TRACER_LOCK,
            uncollected(),
            instrument.suspended(model),
            instrument.uninstrumented(model),
        ):
            weights = self._weights or self._new_weights()
            fed = self._machine.reader.prepare(bound.names, bound.tensors)
            example = self._machine.reader.micro_batch(fed, 0, 0, 0)
            compiled = self._compiler.compile(bound, example, weights, variant)
            if self._training and self._update is None:
                assert self._control is not None
                self._update = self._new_update(self._control.optimizer, weights)
                self._control.attach(self._update, self)
        forget_source_lines()
        self._weights, self._flags = weights, variant.flags
        observe.compiled(self, compiled)
        return compiled

    def _new_weights(self) -> Weights:
        return Weights(
            self._groups.apply(ModuleState.of(self._model)),
            resident=self._resident,
            replicas=self._batching.replicas,
            module=self._model,
        )

    @property
    def _resident(self) -> bool:
        """Does the device have weights of its own?"""
        return self._strict

    def _forget_programs(self) -> None:
        """A parameter object replaced on the host means other state: compile again."""
        self._compiled.clear()
        self._routes.clear()
        self._weights = self._update = self._flags = self._reduction = self._hot = None
        if self._native is not None:
            self._native.forget()

    # State of the device

    def isAttachedToDevice(self) -> bool:
        """True while the executor holds its (software) device."""
        return self._attached

    def attachToDevice(self) -> None:
        """Acquire the device and upload weights; done by the first call anyway."""
        self._need_compiled()
        if self._attached:
            raise StateError(
                "Device is already attached", fix="call detachFromDevice() before attaching again"
            )
        if self._options.connection_type == ConnectionType.Never:
            raise offline_error("trying to attach to an IPU on an offline device")
        claim_device(self, self._options)
        with self._lock:
            self._attached = True
            if self._resident:
                self._pull_from_others()
                self._upload()
                if self._control is not None:
                    self._control.before_run()
                self._random.send()

    def detachFromDevice(self) -> None:
        """Bring the state back to the host and release the device. The program is kept."""
        self._need_compiled()
        if not self._attached:
            raise StateError("Device is not attached", fix="call attachToDevice() or run the model")
        with self._lock:
            self._bring_back()
            if self._resident:
                self._random.read()
                if self._control is not None:
                    self._control.let_go()
            self._attached, self._hot = False, None
            logger.debug("Detached from device")
        release_device(self)

    def _bring_back(self) -> None:
        if self._timeline.publish is not None:
            self._timeline.publish()
        if self._control is not None:
            self.copyWeightsToHostIfNeeded()
            self._control.read_state()

    def destroy(self) -> None:
        """Bring the state back, forget the programs, let the model go."""
        with self._lock:
            if self._compiled:
                self._bring_back()
                if self._control is not None:
                    self._control.detach()
            self._forget_programs()
            self._attached = self._dirty = False
            release_device(self)
            if self._training:
                ownership.release(self._user_model, self)
                if instrument.owner_of(self._user_model) is self:
                    instrument.release(self._user_model)

    # Weights

    def copyWeightsToHost(self) -> None:
        """Copy all parameters and buffers from the device to the host module."""
        self._need_compiled()
        assert self._weights is not None
        logger.debug("copyWeightsToHost()")
        with self._lock, instrument.suspended(self._user_model):
            self._weights.download()
            self._dirty = False
            self._host_version.count += 1

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copy if training ran since the last time; True if it did."""
        if not self._dirty:
            return False
        with self._lock:
            return self._copy_once()

    def _copy_once(self) -> bool:
        # Another thread may have copied while this one waited for the lock.
        if not self._dirty:
            return False
        logger.debug("Implicit copyWeightsToHost()")
        self.copyWeightsToHost()
        return True

    def copyWeightsToDevice(self) -> None:
        """Copy all parameters and buffers from the host module to the device."""
        self._need_compiled()
        with self._lock:
            if self._control is not None:
                self._control.read_state()
            self._dirty = False
            self._upload()

    def copyNamedBuffersToDevice(self) -> None:
        """Copy the buffers of `Options.updatableNamedBuffers` to the device."""
        self._need_compiled()
        if not self._options.exists("updatable_named_buffers"):
            raise StateError(
                "no updatable buffers are set",
                fix="list them with Options.updatableNamedBuffers([...]) before wrapping",
            )
        with self._lock:
            self._upload(self._options.updatable_named_buffers)

    def _upload(self, names: list[str] | None = None) -> None:
        assert self._weights is not None
        with instrument.suspended(self._user_model):
            self._weights.upload(names)
        self._hot = None  # all programs are bound anew, and make what they keep of the weights

    def _pull_from_others(self) -> None:
        """Let the host have what other executors trained before this one reads it."""
        for owner in ownership.owners_of(self._user_model):
            if owner is not self:
                owner.copyWeightsToHostIfNeeded()
                if isinstance(owner, PoplarExecutor):
                    self._seen = (owner._host_version, owner._host_version.count)

    def _refresh_weights(self) -> None:
        """An inference executor takes over what its training executor changed."""
        if self._training:
            return
        if not self._resident or self._linked:
            owner = instrument.owner_of(self._user_model)
            if owner is not None:
                owner.copyWeightsToHostIfNeeded()
            source = owner._host_version if isinstance(owner, PoplarExecutor) else self._seen[0]
            latest = (source, source.count)
            if self._resident and latest != self._seen:
                self._upload()
            self._seen = latest

    @property
    def _host_weights_version(self) -> int:
        return self._host_version.count

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load into the host module, and into the device if it is attached."""
        result = self._user_model.load_state_dict(state_dict, strict=strict)
        if self._attached:
            self.copyWeightsToDevice()
        return result

    # Optimizer and mode

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Use the values of this optimizer from the next step on."""
        if self._control is None:
            raise StateError(
                "an inference model has no optimizer", fix="wrap it with poptorch.trainingModel"
            )
        with self._lock:
            self._hot = None
            self._control.set(optimizer, compiled=bool(self._compiled), update=self._update)

    def train(self, mode: bool = True) -> PoplarExecutor:
        """Put the model in training (or evaluation) mode; the next call compiles for it.

        In strict mode only the host model changes: a compiled program keeps its mode.
        """
        self._user_model.train(mode)
        if not self._strict:
            self._model.training = mode
            self._flags = self._compiler.read_flags()
            self._routes.clear()
            self._hot = None
        return self

    def eval(self) -> PoplarExecutor:
        """Put the model in evaluation mode; the next call compiles for it."""
        return self.train(False)


class _HostVersion:
    """Counts the copies of weights to the host; it outlives the executor that makes them."""

    def __init__(self) -> None:
        self.count = 0
