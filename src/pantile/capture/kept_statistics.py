"""Batch norms in train mode inside a strict inference model.

    inferenceModel(model.train())    normalised by the batch; the running statistics stay

On the device only training writes them. Without strict mode they are updated as in eager PyTorch.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F


def keep_statistics(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `F.batch_norm` by name, with copies of the statistics it would write."""
    given = dict(inspect.signature(F.batch_norm).bind(*args, **kwargs).arguments)
    for name in ("running_mean", "running_var") if given.get("training") else ():
        if isinstance(given[name], torch.Tensor):
            given[name] = given[name].clone()
    return given
