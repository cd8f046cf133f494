"""What an IPU cannot compute, refused in strict mode where forward asks for it.

    F.interpolate(x, mode="linear")     CaptureError: only 'nearest' …
    x + torch.LongTensor([1])           CaptureError: Expected an IPU tensor …

Without strict mode all of this runs: a CPU has every operator of PyTorch. The checks see calls
above the dispatcher, where arguments still have their names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from pantile.errors import CaptureError
from pantile.program.spec import scalar_name

Arguments = Mapping[str, Any]


def host_operand(tensor: torch.Tensor) -> CaptureError:
    """The error for a tensor of the host that meets a tensor of the device."""
    return CaptureError(
        f"Expected an IPU tensor but got tensor(device=cpu, shape={list(tensor.shape)}, "
        f"dtype={scalar_name(tensor.dtype)})",
        fix="make it a buffer of the model, move it with .to(x.device), make it inside forward "
        "with torch.tensor(...), or leave strict mode",
    )


def refuse(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise if the device has no such operator."""
    check = _CHECKS.get(func)
    if check is not None:
        check(args, kwargs)


def _refused(what: str, fix: str) -> CaptureError:
    return CaptureError(f"not supported on an IPU: {what}", fix=f"{fix}, or leave strict mode")


def _one_hot(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
    if classes == -1:
        raise CaptureError(
            "OneHot num classes must be specified and must be constant.",
            fix="pass num_classes: the size of the result depends on the data without it",
        )


def _interpolate(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    mode = _named(F.interpolate, args, kwargs)["mode"]
    if mode in ("linear", "trilinear"):
        raise _refused(
            f"interpolate with mode={mode!r}: only 'nearest' is supported for this many dims",
            "use mode='nearest'",
        )


def _weighted(func: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], None]:
    def check(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _named(func, args, kwargs)["weight"] is not None:
            raise _refused(
                f"{func.__name__} with class weights (weight=...)",
                "multiply the loss of each sample with its weight",
            )

    return check


def _ctc(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    given = _named(F.ctc_loss, args, kwargs)
    if given["targets"].dim() != 2:
        raise _refused(
            f"ctc_loss with targets of {given['targets'].dim()} dimensions; they must have 2",
            "pad the targets to [batch, length]",
        )
    if given["reduction"] == "none":
        raise _refused("ctc_loss with reduction='none'", "use 'sum' or 'mean'")


def _topk(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not kwargs.get("sorted", args[4] if len(args) > 4 else True):
        raise _refused("topk with sorted=False", "leave it out")


def _pool_indices(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    raise _refused("max_pool with return_indices=True", "use return_indices=False")


def _conv_transpose(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    dilation = kwargs.get("dilation", args[7] if len(args) > 7 else 1)
    wanted = dilation if isinstance(dilation, (list, tuple)) else [dilation]
    if any(step != 1 for step in wanted):
        raise _refused(f"conv_transpose with dilation={dilation}", "use a dilation of 1")


def _recurrent(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if len(args) != 9:  # packed sequences
        raise _refused("recurrent layers of packed sequences", "pad the sequences")
    layers, dropout, training, bidirectional = args[4:8]
    if layers != 1 or bidirectional or (dropout and training):
        raise _refused(
            "recurrent layers of more than one layer, in two directions, or with dropout",
            "stack several layers in the model",
        )


def _norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    order = kwargs.get("ord", args[1] if len(args) > 1 else "fro")
    if order in (2, -2, "nuc"):
        raise _refused(f"matrix_norm with ord={order!r}", "use ord='fro'")


def _named(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    bound = _signature(func).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


@cache
def _signature(func: Any) -> inspect.Signature:
    return inspect.signature(func)


_CHECKS: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], None]] = {
    F.one_hot: _one_hot,
    F.interpolate: _interpolate,
    F.cross_entropy: _weighted(F.cross_entropy),
    F.nll_loss: _weighted(F.nll_loss),
    F.ctc_loss: _ctc,
    torch.topk: _topk,
    torch.Tensor.topk: _topk,
    F.max_pool1d_with_indices: _pool_indices,
    F.max_pool2d_with_indices: _pool_indices,
    F.max_pool3d_with_indices: _pool_indices,
    torch.conv_transpose1d: _conv_transpose,
    torch.conv_transpose2d: _conv_transpose,
    torch.conv_transpose3d: _conv_transpose,
    torch.lstm: _recurrent,
    torch.gru: _recurrent,
    torch.rnn_tanh: _recurrent,
    torch.rnn_relu: _recurrent,
    torch.linalg.matrix_norm: _norm,
}
