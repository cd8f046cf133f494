"""Take chance out of a model: the native engine draws other random numbers than eager PyTorch.

    with no_chance():
        model = without_dropout(client.model())

Inside, dropout keeps everything, stochastic depth keeps every layer, and what is drawn from a
distribution is its middle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn

_attention = F.scaled_dot_product_attention


def _kept(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return x


def _attention_without_dropout(*args: Any, **kwargs: Any) -> torch.Tensor:
    names = ("query", "key", "value", "attn_mask")
    given = dict(zip(names, args[:4], strict=False)) | kwargs
    return _attention(**given | {"dropout_p": 0.0})


def _all_ones(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return x.fill_(1.0)


def _halves(*size: Any, **settings: Any) -> torch.Tensor:
    settings.pop("generator", None)
    if size and not isinstance(size[0], int):
        (size,) = size
    return torch.full(size, 0.5, **settings)


def _zeros_like(x: torch.Tensor, **settings: Any) -> torch.Tensor:
    return torch.zeros_like(x, **settings)


_INSTEAD: tuple[tuple[Any, str, Callable[..., torch.Tensor]], ...] = (
    (F, "dropout", _kept),
    (F, "dropout1d", _kept),
    (F, "dropout2d", _kept),
    (F, "dropout3d", _kept),
    (F, "alpha_dropout", _kept),
    (F, "scaled_dot_product_attention", _attention_without_dropout),
    (torch.Tensor, "bernoulli_", _all_ones),
    (torch, "rand", _halves),
    (torch, "randn_like", _zeros_like),
)


@contextmanager
def no_chance() -> Iterator[None]:
    """Replace the functions of torch that models draw random numbers with."""
    with ExitStack() as scope:
        for owner, name, function in _INSTEAD:
            scope.enter_context(patch.object(owner, name, function))
        yield


def without_dropout(model: nn.Module) -> nn.Module:
    """Recurrent modules drop inside one function of torch: tell them not to."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.dropout = 0.0
    return model
