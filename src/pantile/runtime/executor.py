"""`PoplarExecutor`: what `trainingModel` and `inferenceModel` return.

    created ──compile/call──► compiled, attached ◄──attach/call── compiled, detached
       ▲                        │ destroy    └──detach──►               │ destroy
       └────────────────────────┴───────────────────────────────────────┘

A call: bind the arguments → compile if the signature is new → attach → refresh weights → run →
rebuild what forward returned.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, NoReturn

import torch
from torch import nn

from pantile.capture.module_state import ModuleState
from pantile.capture.signature import Binder, Bound, Signature, explain_mismatch
from pantile.enums import ConnectionType, OutputMode
from pantile.errors import Error, OfflineError, StateError
from pantile.logging import logger
from pantile.ops.module_text import module_repr
from pantile.options import Options
from pantile.runtime import instrument
from pantile.runtime.compile import Compiler
from pantile.runtime.compiled import Compiled
from pantile.runtime.inputs import InputReader, Slicing
from pantile.runtime.optimizer import Update
from pantile.runtime.outputs import Batching, OutputCollector
from pantile.runtime.random import RandomStreams
from pantile.runtime.replica_groups import ReplicaGroups
from pantile.runtime.step import StepRunner
from pantile.runtime.training import OptimizerControl
from pantile.runtime.weights import Weights


class PoplarExecutor:
    """Runs a model as a static program on software IPUs. Call it like the model."""

    def __init__(
        self,
        model: nn.Module,
        options: Options,
        *,
        training: bool,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self._training = training
        self._options = _own_options(options, training=training)
        self._strict: bool = self._options.is_strict
        self._user_model = model
        self._model = copy.copy(model)
        self._binder = Binder(self._model.forward)
        self._batching = Batching(
            self._options.device_iterations,
            self._options.Training.gradient_accumulation,
            self._options.replication_factor,
        )
        self._reader = InputReader(Slicing.of(self._options), strict=self._strict)
        seed = self._options.random_seed if self._options.exists("random_seed") else None
        self._random = RandomStreams(seed, self._batching.replicas)
        self._groups = ReplicaGroups(self._batching.replicas)
        self._compiler = Compiler(self._model, self._options, training=training)
        self._control = OptimizerControl(self._options) if training else None
        self._compiled: list[Compiled] = []
        self._weights: Weights | None = None
        self._update: Update | None = None
        self._attached = False
        self._dirty = False
        self._host_weights_version = 0
        self._seen_version = -1
        self._source = instrument.owner_of(model) if not training else None
        if training:
            self._wrap(optimizer)

    def _wrap(self, optimizer: torch.optim.Optimizer | None) -> None:
        owner = _training_owners.get(self._user_model)
        if owner is not None and owner() is not None:
            from pantile.errors import AlreadyWrapped

            raise AlreadyWrapped(
                "the model has already been wrapped in a training executor",
                fix="call model.destroy() on the executor that holds it, then wrap it again",
            )
        instrument.check_buffers(self._user_model)
        assert self._control is not None
        if optimizer is None:
            parameters = [p for p in self._user_model.parameters() if p.requires_grad]
            optimizer = torch.optim.SGD(parameters or [torch.zeros(0)], lr=0.01)
        self._control.set(optimizer, compiled=False)
        if self._strict:
            instrument.instrument(self._user_model, self)
        _training_owners[self._user_model] = weakref.ref(self)

    # Calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step: the arguments hold `B * D * G * R` samples on dim 0."""
        if self._options.connection_type == ConnectionType.Never:
            raise OfflineError(
                "a model cannot be run on an offline device",
                fix="remove useOfflineIpuTarget() or ConnectionType.Never from the options",
            )
        bound = self._binder.bind(args, kwargs)
        compiled, bound = self._compiled_for(bound)
        if not self._attached:
            self.attachToDevice()
        self._refresh_weights()
        return self._run(compiled, bound)

    def _run(self, compiled: Compiled, bound: Bound) -> Any:
        mode, period = OutputMode(self._options.output_mode), self._options.output_return_period
        collector = OutputCollector(mode, period, self._batching)
        tensors = self._reader.prepare(bound)
        runner = self._runner()
        if self._training:
            assert self._update is not None and self._control is not None
            self._control.before_run()
            runner.train(compiled, tensors, collector, self._update)
            self._control.after_run()
            self._dirty = self._resident
        else:
            runner.infer(compiled, tensors, collector)
        _write_back(compiled, bound, tensors)
        outputs = [self._finished(tensor) for tensor in collector.gathered()]
        return compiled.rebuild(outputs)

    def _finished(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._strict and tensor.dtype in _NARROW_OUTPUTS:
            tensor = tensor.to(_NARROW_OUTPUTS[tensor.dtype])
        if self._training:
            tensor.backward = _no_backward  # type: ignore[method-assign]
        return tensor

    def _runner(self) -> StepRunner:
        assert self._weights is not None
        reduction = self._compiler.reduction(self._groups, self._control)
        return StepRunner(self._batching, self._reader, self._weights, self._random, reduction)

    # Compiling

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for these arguments without running."""
        bound = self._binder.bind(args, kwargs)
        if self._compiled and self._options.pins_signature:
            logger.warning("The model is already compiled: compile() is ignored.")
            return
        self._compiled_for(bound)
        if not self._attached and self._options.connection_type == ConnectionType.Always:
            self.attachToDevice()

    def _compiled_for(self, bound: Bound) -> tuple[Compiled, Bound]:
        """The compiled program for a call, compiled now if the call is of a new kind."""
        self._drop_if_model_changed()
        signature = Signature.of(bound)
        found = self._find(signature)
        if found is None and self._compiled:
            bound = self._binder.align(self._compiled[0].values, bound)
            signature = Signature.of(bound)
            found = self._find(signature)
        if found is not None:
            return found, bound
        if self._compiled and self._options.pins_signature:
            raise explain_mismatch(self._compiled[0].values, bound.values)
        self._reader.check(bound)
        self._compiled.append(self._compile(bound, signature))
        return self._compiled[-1], bound

    def _find(self, signature: Signature) -> Compiled | None:
        flags = self._compiler.flags
        for compiled in self._compiled:
            if compiled.flags == flags and compiled.signature.same_as(signature):
                return compiled
        return None

    def _compile(self, bound: Bound, signature: Signature) -> Compiled:
        if self._source is not None:
            self._source.copyWeightsToHostIfNeeded()
        with instrument.suspended(self._user_model), instrument.uninstrumented(self._user_model):
            if self._weights is None:
                state = self._groups.apply(ModuleState.of(self._model))
                self._weights = Weights(
                    state, resident=self._resident, replicas=self._batching.replicas
                )
            tensors = self._reader.prepare(bound)
            example = self._reader.micro_batch(tensors, 0, 0, 0)
            compiled = self._compiler.compile(
                bound, signature, example, self._weights, scaled=self._is_scaled()
            )
            if self._training and self._update is None:
                assert self._control is not None
                self._update = Update(
                    self._control.optimizer, self._weights, strict=self._strict
                )
                self._control.attach(self._update, self)
        return compiled

    def _is_scaled(self) -> bool:
        return self._control is not None and self._control.loss_scaling != 1.0

    @property
    def _resident(self) -> bool:
        """Does the device have weights of its own?"""
        return self._strict

    def _drop_if_model_changed(self) -> None:
        """A parameter object replaced on the host means other state: compile again."""
        if self._weights is None or self._resident:
            return
        state = self._groups.apply(ModuleState.of(self._model))
        if not self._weights.matches(state):
            self._compiled.clear()
            self._weights = None
            if self._update is not None and self._control is not None:
                self._update = None

    # State of the device

    def isCompiled(self) -> bool:
        """True once there is a compiled program."""
        return bool(self._compiled)

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
            raise OfflineError(
                "trying to attach to an offline device",
                fix="remove useOfflineIpuTarget() or ConnectionType.Never from the options",
            )
        self._attached = True
        if self._resident and not self._dirty:
            self._upload()

    def detachFromDevice(self) -> None:
        """Bring the state back to the host and release the device. The program is kept."""
        self._need_compiled()
        if not self._attached:
            raise StateError("Device is not attached", fix="call attachToDevice() or run the model")
        if self._training:
            self.copyWeightsToHostIfNeeded()
            assert self._control is not None
            self._control.read_state()
        self._attached = False

    def destroy(self) -> None:
        """Bring the state back, forget the programs, let the model go."""
        if self._compiled and self._training:
            self.copyWeightsToHostIfNeeded()
            assert self._control is not None
            self._control.read_state()
            self._control.detach()
        self._compiled.clear()
        self._weights = self._update = None
        self._attached = self._dirty = False
        if self._training:
            _training_owners.pop(self._user_model, None)
            instrument.release(self._user_model)

    def _need_compiled(self) -> None:
        if not self._compiled:
            raise StateError(
                "the model has not been compiled", fix="call the model, or compile(...), first"
            )

    # Weights

    def copyWeightsToHost(self) -> None:
        """Copy all parameters and buffers from the device to the host module."""
        self._need_compiled()
        assert self._weights is not None
        with instrument.suspended(self._user_model):
            self._weights.download()
        self._dirty = False
        self._host_weights_version += 1

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copy if training ran since the last time; True if it did."""
        if not self._dirty:
            return False
        self.copyWeightsToHost()
        return True

    def copyWeightsToDevice(self) -> None:
        """Copy all parameters and buffers from the host module to the device."""
        self._need_compiled()
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
        self._upload(self._options.updatable_named_buffers)

    def _upload(self, names: list[str] | None = None) -> None:
        assert self._weights is not None
        with instrument.suspended(self._user_model):
            self._weights.upload(names)

    def _refresh_weights(self) -> None:
        """An inference executor takes over what its training executor changed."""
        if self._training or self._source is None or not self._resident:
            return
        self._source.copyWeightsToHostIfNeeded()
        version = self._source.host_weights_version()
        if version != self._seen_version:
            if self._seen_version != -1 or version:
                self._upload()
            self._seen_version = version

    def host_weights_version(self) -> int:
        """How often weights were copied to the host."""
        return self._host_weights_version

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load into the host module, and into the device if it is attached."""
        result = self._user_model.load_state_dict(state_dict, strict=strict)
        if self._attached:
            self.copyWeightsToDevice()
        return result

    # Optimizer

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Use the values of this optimizer from the next step on."""
        if self._control is None:
            raise StateError("an inference model has no optimizer", fix="use poptorch.trainingModel")
        self._control.set(optimizer, compiled=bool(self._compiled), update=self._update)

    # Information

    @property
    def model(self) -> nn.Module:
        """The wrapped module: the original for training, a shallow copy for inference."""
        return self._user_model if self._training else self._model

    @property
    def options(self) -> Options:
        """The executor's own, frozen options; the output mode is resolved."""
        return self._options

    @property
    def rng_state(self) -> list[int]:
        """The random state: assign it to resume, or to repeat, a run exactly."""
        self._need_compiled()
        return self._random.state

    @rng_state.setter
    def rng_state(self, state: list[int]) -> None:
        self._need_compiled()
        self._random.state = state

    @property
    def per_replica_params(self) -> dict[str, Any]:
        """Parameters with a value per group of replicas."""
        return self._groups.chosen

    def compilationTime(self) -> timedelta:
        """How long the latest compilation took."""
        elapsed = self._compiler.progress.elapsed
        if not self._compiled or elapsed is None:
            raise Error(
                "there is no compilation time yet", fix="compile the model before asking for it"
            )
        if self._strict and not self._options.show_compilation_progress_bar:
            raise Error(
                "the compilation was not timed",
                fix="set showCompilationProgressBar(True) in the options",
            )
        return elapsed

    def train(self, mode: bool = True) -> PoplarExecutor:
        """Put the model in training (or evaluation) mode; the next call compiles for it."""
        self._model.train(mode)
        self._user_model.training = mode
        self._compiler.read_flags()
        return self

    def eval(self) -> PoplarExecutor:
        """Put the model in evaluation mode; the next call compiles for it."""
        return self.train(False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_user_model" not in self.__dict__:
            raise AttributeError(name)
        value = getattr(self._user_model, name)
        if isinstance(value, nn.Parameter) and name in self._user_model._parameters:
            return self._groups.offer(name, value, compiled=bool(self._compiled))
        return value

    def __repr__(self) -> str:
        return module_repr(self._user_model)


_NARROW_OUTPUTS = {
    torch.int64: torch.int32,
    torch.float64: torch.float32,
    torch.bfloat16: torch.float32,
}

_training_owners: weakref.WeakKeyDictionary[nn.Module, Callable[[], PoplarExecutor | None]] = (
    weakref.WeakKeyDictionary()
)


def _own_options(options: Options, *, training: bool) -> Options:
    """Freeze the user's options; take a frozen copy with the output mode resolved."""
    options._freeze()
    own = options.clone()
    if own.defaultOutputMode():
        own.outputMode(OutputMode.Final if training else OutputMode.All)
    own._freeze()
    return own


def _no_backward(*_: Any, **__: Any) -> NoReturn:
    raise Error(
        "backward() cannot be called explicitly on the output of a training model",
        fix="remove the call: the step has already computed gradients and updated the weights",
    )


def _write_back(compiled: Compiled, bound: Bound, tensors: list[torch.Tensor]) -> None:
    """In-place changes of an argument reach the caller's tensor, also where a copy was fed."""
    written = {entry.name for entry, _ in compiled.program.writes}
    for name, original, fed in zip(bound.names, bound.tensors, tensors, strict=True):
        if name in written and original.data_ptr() != fed.data_ptr():
            with torch.no_grad():
                original.copy_(fed)
