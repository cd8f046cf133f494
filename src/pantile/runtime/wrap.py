"""`trainingModel` and `inferenceModel`: a module becomes an executor."""

from __future__ import annotations

import torch
from torch import nn

from pantile.errors import CaptureError, Error, OptionTypeError
from pantile.options import Options
from pantile.options.limits import check_inference_options
from pantile.runtime import instrument
from pantile.runtime.executor import PoplarExecutor
from pantile.runtime.instrument_link import lock


def trainingModel(
    model: nn.Module | PoplarExecutor,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """Wrap a model whose forward returns its loss: each call trains it.

    Without an optimizer, SGD with a learning rate of 0.01 is used.
    """
    options = _checked(options)
    return PoplarExecutor(_module(model), options, training=True, optimizer=optimizer)


def inferenceModel(
    model: nn.Module | PoplarExecutor, options: Options | None = None
) -> PoplarExecutor:
    """Wrap a model for inference. Given an executor, it shares that executor's weights."""
    options = _checked(options)
    check_inference_options(options)
    return PoplarExecutor(_module(model), options, training=False)


def unwrap_model(model: nn.Module) -> nn.Module:
    """Give a wrapped model its own classes back, up to date, until `rewrap_model`.

    Without strict mode a wrapped model has its own classes anyway.
    """
    owner = instrument.owner_of(model)
    if owner is not None:
        owner.copyWeightsToHostIfNeeded()
    with lock:
        for link in instrument.links_under(model):
            link.undress()
    return model


def rewrap_model(model: nn.Module) -> nn.Module:
    """Let a model that `unwrap_model` undressed ask its executor for its weights again."""
    with lock:
        for link in instrument.links_under(model):
            link.dress()
    return model


def _checked(options: Options | None) -> Options:
    if options is None:
        return Options()
    if not isinstance(options, Options):
        raise OptionTypeError(
            f"options is a {type(options).__name__}, not a poptorch.Options",
            fix="pass poptorch.Options()",
        )
    return options


def _module(model: nn.Module | PoplarExecutor) -> nn.Module:
    if isinstance(model, PoplarExecutor):
        return model._user_model
    if not isinstance(model, nn.Module):
        raise Error(
            f"model is a {type(model).__name__}, not a torch.nn.Module",
            fix="wrap the function in a Module with a forward method",
        )
    check_is_python(model)
    return model


def check_is_python(model: nn.Module) -> None:
    """Refuse what cannot be recorded at all."""
    for path, child in model.named_modules():
        if isinstance(child, torch.jit.ScriptModule):
            raise CaptureError(
                f"model holds a torch.jit module{f' as {path!r}' if path else ''}: its weights and "
                "its forward are out of Python's reach",
                fix="wrap the model before it is scripted or traced with torch.jit",
            )
