"""Whether the weights are updated by the program of the step, or after it.

split   a program computes loss and gradients; backward, clipping, accumulation, hooks and the
        optimizer's step are Lightning's own, on gradients they can see and change
fused   one program computes everything, update included; nothing runs in between
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

from pantile.lightning.namespaces import NAMES, Namespace

SPLIT, FUSED = "split", "fused"
_GRADIENT_HOOKS = (
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
)
_MODULE_HOOKS = (
    *_GRADIENT_HOOKS,
    "backward",
    "optimizer_step",
    "optimizer_zero_grad",
    "configure_gradient_clipping",
    "clip_gradients",
    "on_train_batch_end",
)
_OWN_PACKAGES = (*NAMES, "lightning", "pantile")


def reasons_to_split(strategy: Any, trainer: Any) -> list[str]:
    """What needs gradients, or control, between the parts of a step."""
    return [
        *_of_module(strategy.namespace, strategy.lightning_module),
        *_of_callbacks(strategy.namespace, trainer.callbacks),
        *_of_flags(trainer),
        *_of_optimizers(strategy),
    ]


def _overrides(thing: Any, base: Any, hook: str) -> bool:
    """Is the hook not the empty one of the base class?"""
    return getattr(type(thing), hook, None) is not getattr(base, hook) or hook in vars(thing)


def _of_module(namespace: Namespace, module: Any) -> Iterator[str]:
    base = namespace.find("core.module:LightningModule")
    for hook in _MODULE_HOOKS:
        if _overrides(module, base, hook):
            yield f"{type(module).__name__}.{hook}"
    if any(child._backward_hooks or child._backward_pre_hooks for child in module.modules()):
        yield "hooks on the backward of modules"


def _of_callbacks(namespace: Namespace, callbacks: Any) -> Iterator[str]:
    base = namespace.find("callbacks.callback:Callback")
    for callback in callbacks:
        kind = type(callback)
        hooks = list(_GRADIENT_HOOKS)
        if not kind.__module__.startswith(_OWN_PACKAGES):
            hooks.append("on_train_batch_end")
        for hook in hooks:
            if _overrides(callback, base, hook):
                yield f"{kind.__name__}.{hook}"
        if kind.__name__ in ("GradientAccumulationScheduler", "StochasticWeightAveraging"):
            yield kind.__name__


def _of_flags(trainer: Any) -> Iterator[str]:
    if trainer.accumulate_grad_batches != 1:
        yield f"accumulate_grad_batches={trainer.accumulate_grad_batches}"
    if trainer._detect_anomaly:
        yield "detect_anomaly=True"


def _of_optimizers(strategy: Any) -> Iterator[str]:
    import torch

    plugin = strategy.precision_plugin
    if getattr(plugin, "scaler", None) is not None:
        yield "dynamic loss scaling"
    if not hasattr(plugin, "is_ipu_precision"):
        yield f"{type(plugin).__name__}, a precision plugin of the user's own"
    if len(strategy.optimizers) != 1:
        yield f"{len(strategy.optimizers)} optimizers"
        return
    optimizer = strategy.optimizers[0]
    if is_stand_in(optimizer):
        yield "there is no optimizer"
    elif not isinstance(optimizer, torch.optim.Optimizer):
        yield f"{type(optimizer).__name__} is not a torch optimizer"
    elif isinstance(optimizer, torch.optim.LBFGS):
        yield "LBFGS"
    elif not inspect.isfunction(type(optimizer).step):
        yield "a step that is no function of Python"
    elif "step" in vars(optimizer) and not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        yield "a step of the optimizer's own"


def reasons_to_rather_split(strategy: Any) -> Iterator[str]:
    """What may be part of a program, but does more than compute perhaps.

    The step of an optimizer that is not torch's may count, print or keep numbers of its own; it is
    called each time unless the user asks for fused steps.
    """
    for optimizer in strategy.optimizers:
        owner = next(kind for kind in type(optimizer).__mro__ if "step" in vars(kind))
        if not owner.__module__.startswith(("torch.optim", "pantile.", "poptorch.")):
            yield f"{owner.__name__}.step"


def is_function(thing: Any) -> bool:
    """Is it a function of Python, or one with arguments given?"""
    return inspect.isroutine(thing) or isinstance(thing, functools.partial)


def replaced_by_objects(strategy: Any) -> Iterator[str]:
    """What a step that optimises by hand calls, and somebody has put an object in the place of.

    A recorded step would call it once; whoever counts calls, or does something else, wants it to be
    called in each.
    """
    for optimizer in strategy.optimizers:
        for name in ("step", "zero_grad"):
            if not inspect.isroutine(getattr(type(optimizer), name, None)):
                yield f"{type(optimizer).__name__}.{name}"
    if not inspect.isroutine(strategy.backward):
        yield f"{type(strategy).__name__}.backward"


def observing(namespace: Namespace, callbacks: Any) -> tuple[Any, ...]:
    """The callbacks whose hooks run within a step that optimises by hand."""
    base = namespace.find("callbacks.callback:Callback")
    return tuple(
        callback
        for callback in callbacks
        if any(_overrides(callback, base, hook) for hook in _GRADIENT_HOOKS)
    )


def is_stand_in(optimizer: Any) -> bool:
    """What Lightning puts where `configure_optimizers` returned None."""
    return type(optimizer).__name__ == "_MockOptimizer"
