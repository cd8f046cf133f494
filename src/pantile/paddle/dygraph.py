"""Dygraph models on software IPUs: `@paddle.jit.to_static` and `ipu_strategy.set_optimizer`.

    model(x, label)      forward, backward and update, as one step of a static program

Paddle traces the layer to a static program. Here that program gets its optimizer appended and is
compiled; the parameters of the layer are its scope, updated by `weights_to_host`.
"""

from __future__ import annotations

import copy
import functools
import os
from collections import defaultdict
from typing import Any

import numpy as np
import torch

from pantile.errors import OptimizerError
from pantile.paddle.backend import IpuBackend
from pantile.paddle.compiled import CompiledProgram
from pantile.paddle.patches import Patches
from pantile.paddle.scope import as_array, as_tensor
from pantile.paddle.wheel import PaddleScope

_FALL_BACK = "ENABLE_FALL_BACK"
_LOSSES = frozenset(
    {
        "bce_loss",
        "cross_entropy",
        "cross_entropy2",
        "huber_loss",
        "kldiv_loss",
        "rank_loss",
        "sigmoid_cross_entropy_with_logits",
        "softmax_with_cross_entropy",
        "warpctc",
    }
)


def install(paddle: Any, patches: Patches) -> None:
    """Replace the part of Paddle's IPU patcher that compiles traced layers."""
    from paddle.base.compiler import IpuDynamicPatcher

    def register(strategy: Any) -> None:
        from paddle.jit.dy2static.program_translator import ProgramCache

        stock = ProgramCache.__getitem__
        ProgramCache.__getitem__ = _getter(paddle, strategy)
        IpuDynamicPatcher.patcher_cache.append([ProgramCache, "__getitem__", stock])
        IpuDynamicPatcher.patch_lr_scheduler(strategy)

    def release() -> None:
        while IpuDynamicPatcher.patcher_cache:  # the latest first, down to the stock method
            owner, name, before = IpuDynamicPatcher.patcher_cache.pop()
            setattr(owner, name, before)

    patches.put(IpuDynamicPatcher, "register_patch", staticmethod(register))
    patches.put(IpuDynamicPatcher, "release_patch", staticmethod(release))
    patches.on_undo(release)
    _trace_whole_functions(patches)
    _mark_half_losses(paddle, patches)


def _mark_half_losses(paddle: Any, patches: Patches) -> None:
    """The stock function refuses half, which a layer in half precision gives it."""
    stock = paddle.incubate.identity_loss

    @functools.wraps(stock)
    def identity_loss(x: Any, reduction: Any = "none") -> Any:
        return stock(paddle.cast(x, "float32") if x.dtype == paddle.float16 else x, reduction)

    for module in (paddle.incubate, paddle.incubate.nn.loss):
        patches.put(module, "identity_loss", identity_loss)


def _trace_whole_functions(patches: Patches) -> None:
    """Paddle's default tracer splits functions into several programs; one is needed."""
    before = os.environ.get(_FALL_BACK)
    os.environ[_FALL_BACK] = "False"

    def restore() -> None:
        if before is None:
            os.environ.pop(_FALL_BACK, None)
        else:
            os.environ[_FALL_BACK] = before

    patches.on_undo(restore)


def _getter(paddle: Any, strategy: Any) -> Any:
    def getter(self: Any, item: Any) -> Any:
        key = hash(item)
        self._recent_key = key
        self._recent_cache_key = item
        if key not in self._caches or strategy.need_compile:
            concrete, partial = self._build_once(item)
            layer = _StaticLayer(paddle, strategy, concrete, partial, item.class_instance)
            self._caches[key] = (concrete, layer)
        return self._caches[key]

    return getter


class LayerScope:
    """The parameters and buffers of a layer, and the state of its optimizer beside them."""

    def __init__(self, tensors: dict[str, Any], rest: PaddleScope) -> None:
        self._tensors, self._rest = tensors, rest

    def find(self, name: str) -> torch.Tensor | None:
        """A copy of a variable's value; None if it has none."""
        if name not in self._tensors:
            return self._rest.find(name)
        array = self._tensors[name].numpy()
        bits = torch.bfloat16 if array.dtype == np.uint16 else None
        return as_tensor(array, bits).clone()

    def store(self, name: str, value: torch.Tensor) -> None:
        """Give a variable a value."""
        if name in self._tensors:
            self._tensors[name].set_value(as_array(value).copy())
        else:
            self._rest.store(name, value)


class _StaticLayer:
    """What a traced function calls: one step of the compiled program."""

    def __init__(
        self, paddle: Any, strategy: Any, concrete: Any, partial: Any, instance: Any
    ) -> None:
        self._paddle, self._strategy, self._partial = paddle, strategy, partial
        self.training = True
        if strategy.enable_fp16 and instance is not None:
            instance.to(dtype="float16")
        scope = paddle.static.Scope()
        first = 1 if instance is not None else 0
        feeds = [v.name for v in paddle.utils.flatten(concrete.inputs[first:]) if _named(v)]
        fetches = [v.name for v in paddle.utils.flatten(concrete.outputs) if _named(v)]
        tensors = {p.name: p for p in concrete.parameters}
        loss, made = None, None
        with _static(paddle):
            program = concrete.main_program.clone()
            if strategy.is_training:
                loss = _loss_name(program)
                made = self._append_update(program, scope, loss)
            if strategy.enable_fp16:
                self._to_half(program)
        if made is not None:
            self._adopt_state(strategy._optimizer, made, scope, tensors)
        self.compiled = CompiledProgram(
            program,
            feeds=feeds,
            fetches=fetches,
            values=strategy._ipu_strategy,
            scope=LayerScope(tensors, PaddleScope(scope)),
            loss=loss,
        )
        self._feeds, self._fetches = feeds, fetches
        backend = IpuBackend.get_instance()
        backend.compiled = self.compiled
        backend.set_ipu_strategy(strategy._ipu_strategy)
        strategy.need_compile = False

    def _append_update(self, program: Any, scope: Any, loss: str) -> Any:
        """Append backward and update operators; the state they need is made in the scope.

        Returns the copy of the optimizer that names the state: the user's stays a dygraph one.
        """
        paddle, optimizer = self._paddle, getattr(self._strategy, "_optimizer", None)
        if optimizer is None:
            raise OptimizerError(
                "the layer is compiled for training and has no optimizer",
                fix="call ipu_strategy.set_optimizer(optimizer), or set is_training=False",
            )
        twin = copy.copy(optimizer)
        twin._accumulators = defaultdict(dict)
        twin._learning_rate_map = {}
        twin._accumulators_holder = {}
        twin._already_create_accumulater = set()
        startup = paddle.static.Program()
        block = program.global_block()
        with paddle.static.program_guard(program, startup):
            trained = [
                p.name
                for p in optimizer._parameter_list or ()
                if not p.stop_gradient and block.has_var(p.name)
            ]
            pairs = paddle.base.backward.append_backward(
                block.var(loss), parameter_list=trained or None
            )
            twin._parameter_list = None
            twin.apply_gradients(pairs)
            paddle.static.Executor(paddle.CPUPlace()).run(startup, scope=scope)
        return twin

    def _adopt_state(self, optimizer: Any, twin: Any, scope: Any, tensors: dict[str, Any]) -> None:
        """The user's optimizer holds the state as dygraph tensors: saved, loaded, synced."""
        paddle = self._paddle
        for kind, by_parameter in twin._accumulators.items():
            for parameter, variable in by_parameter.items():
                held = optimizer._accumulators[kind].get(parameter)
                if held is None or not hasattr(held, "set_value"):
                    value = np.array(scope.find_var(variable.name).get_tensor())
                    held = paddle.to_tensor(value)
                    held.name = variable.name
                    optimizer._accumulators[kind][parameter] = held
                tensors[variable.name] = held

    def _to_half(self, program: Any) -> None:
        amp = self._paddle.static.amp
        lists = amp.CustomOpLists()
        lists.unsupported_list = {"cumsum"}
        amp.cast_model_to_fp16(program, lists, use_fp16_guard=False)

    def __call__(self, inputs: Any) -> Any:
        """Run one step; the results have the structure the traced function returned."""
        paddle, partial = self._paddle, self._partial
        kinds = (paddle.Tensor, np.ndarray)
        fed = [t for t in paddle.utils.flatten(inputs) if isinstance(t, kinds)]
        arrays = [t.numpy() if isinstance(t, paddle.Tensor) else t for t in fed]
        results = self.compiled.run(dict(zip(self._feeds, arrays, strict=True)))
        found = dict(zip(self._fetches, results, strict=True))
        outputs = [paddle.to_tensor(found[name]) for name in self._fetches]
        return partial._remove_no_value(partial._restore_out(outputs))


def _named(value: Any) -> bool:
    return hasattr(value, "desc") and hasattr(value, "name")


def _loss_name(program: Any) -> str:
    """What `identity_loss` marked, else the last loss, followed to what is made of it."""
    operators = list(program.global_block().ops)
    marked = [op for op in operators if op.type == "identity_loss"]
    if marked:
        return str(marked[-1].output_arg_names[0])
    places = [place for place, op in enumerate(operators) if op.type in _LOSSES]
    if not places:
        raise OptimizerError(
            "the traced layer computes no loss",
            fix="mark it with paddle.incubate.identity_loss(x, reduction)",
        )
    op = operators[places[-1]]
    name = str((op.output("Loss") if "Loss" in op.output_names else op.output_arg_names)[0])
    for later in operators[places[-1] + 1 :]:
        if name in later.input_arg_names and later.output_arg_names:
            name = str(later.output_arg_names[0])
    return name


class _static:
    """Static mode inside the scope."""

    def __init__(self, paddle: Any) -> None:
        self._paddle = paddle
        self._was_dynamic = paddle.in_dynamic_mode()

    def __enter__(self) -> None:
        self._paddle.enable_static()

    def __exit__(self, *_: Any) -> None:
        if self._was_dynamic:
            self._paddle.disable_static()
