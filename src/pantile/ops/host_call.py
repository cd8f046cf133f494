"""`CPU`: a Python function in the middle of a compiled program.

    capture   run the function once on zeros: gives the shapes and types of its results
    run       pantile::host_call(inputs, handle) looks the function up and calls it

The handle is valid in this process only: a program with such a call cannot be stored.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.fx.node import has_side_effect
from torch.utils._python_dispatch import _disable_current_modes

from pantile.errors import OperandError
from pantile.ops.context import current, strict_mode
from pantile.ops.operands import refuse_in_strict_training, require_tensor


@dataclass(frozen=True)
class _Call:
    function: Callable[..., Any]
    name: str
    results: tuple[tuple[tuple[int, ...], torch.dtype], ...]


_calls: dict[int, _Call] = {}
_handles = itertools.count()


@torch.library.custom_op("pantile::host_call", mutates_args=())
def _host_call(inputs: Sequence[torch.Tensor], handle: int) -> list[torch.Tensor]:
    call = _calls[handle]
    results = _tensors(call.name, call.function(*inputs))
    found = tuple((tuple(t.shape), t.dtype) for t in results)
    if found != call.results:
        raise OperandError(
            f"CPU op {call.name!r} returned {found}; when it was captured it returned "
            f"{call.results}",
            fix="make shapes and types of the results independent of the values",
        )
    # The program owns its tensors: a result may not share memory with an input.
    return [tensor.detach().clone() for tensor in results]


@_host_call.register_fake
def _like_when_captured(inputs: Sequence[torch.Tensor], handle: int) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=dtype) for shape, dtype in _calls[handle].results]


# The function may do anything: its calls are not merged, reordered or dropped.
has_side_effect(torch.ops.pantile.host_call.default)


class CPU:
    """Run `layer_to_call` on the host whenever the compiled program gets there.

    The call has no gradient. If `layer_to_call` is a module, its parameters are frozen. `ID` names
    the call in messages.
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        if not callable(layer_to_call):
            raise OperandError(
                f"CPU: layer_to_call={type(layer_to_call).__name__} cannot be called",
                fix="pass a function or an nn.Module",
            )
        if isinstance(layer_to_call, nn.Module):
            for parameter in layer_to_call.parameters():
                parameter.requires_grad_(False)
        self._layer_to_call = layer_to_call
        self._ID = ID

    def __call__(self, *args: torch.Tensor, **kwargs: Any) -> Any:
        """Call the function: at once on the CPU, at run time inside a program."""
        if current() is None:
            return self._layer_to_call(*args, **kwargs)
        refuse_in_strict_training("CPU")
        if kwargs:
            raise OperandError(
                f"CPU op {self._ID!r} takes positional tensors only, not {sorted(kwargs)}",
                fix="pass tensors by position and bind the rest with functools.partial",
            )
        inputs = [require_tensor("CPU", f"args[{i}]", value) for i, value in enumerate(args)]
        function = self._layer_to_call
        if strict_mode():  # PopTorch's buffers between host and device hold float32 only
            inputs = [tensor.float() for tensor in inputs]
            function = _in_float32(function)
        return host_call(function, str(self._ID), inputs)


def host_call(function: Callable[..., Any], name: str, inputs: Sequence[torch.Tensor]) -> Any:
    """Call a function on the host where the program gets to this point; recorded in any case.

    Also from the backward of an `autograd.Function`, which torch calls outside `forward`.
    """
    structure, results = _try_on_zeros(function, name, inputs)
    handle = next(_handles)
    _calls[handle] = _Call(function, name, results)
    # A strict program that calls the host trains nothing: there its results are no leaves either.
    given = list(inputs) if strict_mode() else [t.detach() for t in inputs]
    outputs = torch.ops.pantile.host_call(given, handle)
    return outputs[0] if structure is torch.Tensor else structure(outputs)


def _try_on_zeros(
    function: Callable[..., Any], name: str, inputs: Sequence[torch.Tensor]
) -> tuple[Any, Any]:
    """(kind of container, shapes and types) of the results, from a real call on zeros."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        zeros = [torch.zeros(tuple(t.shape), dtype=t.dtype) for t in inputs]
        result = function(*zeros)
        results = _tensors(name, result)
    structure = torch.Tensor if isinstance(result, torch.Tensor) else type(result)
    return structure, tuple((tuple(t.shape), t.dtype) for t in results)


def _in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with results in float32."""

    def call(*tensors: torch.Tensor) -> Any:
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.float, function(*tensors))

    return call


def _tensors(name: str, result: Any) -> list[torch.Tensor]:
    results = [result] if isinstance(result, torch.Tensor) else result
    if isinstance(results, (list, tuple)) and all(isinstance(t, torch.Tensor) for t in results):
        return list(results)
    raise OperandError(
        f"CPU op {name!r} returned {type(result).__name__}",
        fix="return a tensor, or a list or tuple of tensors",
    )
