"""`trainingModel` and `inferenceModel`: a module becomes an executor."""

from __future__ import annotations

import torch
from torch import nn

from pantile.errors import Error, OptionTypeError
from pantile.options import Options
from pantile.options.limits import check_inference_options
from pantile.runtime.executor import PoplarExecutor


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
    return model
