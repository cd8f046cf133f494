"""Layers whose weights are of another type than what flows through them.

    half activations, float weights     computed and returned in half; the weights and their update
                                        stay in float
    float activations, half weights     computed and returned in float
    norms                               statistics and weights of different types: all in float

Eager PyTorch refuses these. The result is of the type of the activation; a cast in the graph takes
the gradient of a weight back to the weight's own type.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

# Not float64: data from NumPy in a float model is a mistake, which eager names.
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32})
_NARROW = frozenset({torch.float16, torch.bfloat16})
_STATISTICS = ("running_mean", "running_var")

#: Where the weights of a layer are among its arguments.
_LAYERS: dict[Callable[..., Any], tuple[int, ...]] = {
    F.linear: (1, 2),
    F.bilinear: (2, 3),
    F.prelu: (1,),
    **{getattr(torch, f"conv{kind}{n}d"): (1, 2) for kind in ("", "_transpose") for n in (1, 2, 3)},
}
_NORMS: dict[Callable[..., Any], tuple[str, ...]] = {
    F.batch_norm: ("weight", "bias", *_STATISTICS),
    F.instance_norm: ("weight", "bias", *_STATISTICS),
    F.layer_norm: ("weight", "bias"),
    F.group_norm: ("weight", "bias"),
    F.rms_norm: ("weight",),
}
MIXING = frozenset({*_LAYERS, *_NORMS})
"""The functions that take weights of another type here."""


def call_mixed(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a layer's function; its result has the type of its first argument."""
    first: Any = args[0] if args else kwargs.get("input")
    if torch.is_autocast_enabled("cpu") or not _is_float(first):
        return func(*args, **kwargs)
    if func in _NORMS:
        return _call_norm(func, args, kwargs, first.dtype)
    changed = list(args)
    for place in _LAYERS[func]:
        if place < len(changed):
            changed[place] = _cast(changed[place], first.dtype)
    named = {key: _cast(v, first.dtype) for key, v in kwargs.items() if key in ("weight", "bias")}
    return func(*changed, **{**kwargs, **named})


def _call_norm(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype
) -> Any:
    """All of one type is left alone; torch also takes narrow data with float weights."""
    given = inspect.signature(func).bind(*args, **kwargs).arguments
    held = {name: given[name] for name in _NORMS[func] if _is_float(given.get(name))}
    types = {tensor.dtype for tensor in held.values()}
    if types <= {dtype} or (dtype in _NARROW and types == {torch.float32}):
        return func(*args, **kwargs)
    wide = torch.float32 if dtype in _NARROW else dtype
    cast = {name: _cast(tensor, wide) for name, tensor in held.items()}
    result = func(**{**given, **cast})
    for name in _STATISTICS:  # updated in place: a cast one is only a copy
        if name in held and cast[name] is not held[name]:
            held[name].copy_(cast[name])
    return result


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _FLOATS


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if _is_float(value) and value.dtype is not dtype else value
