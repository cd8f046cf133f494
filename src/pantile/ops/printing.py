"""`ipu_print_tensor`: print a value, and its gradient, each time the compiled program runs.

The print is a custom op without a result. It is marked as having a side effect, so that no
clean-up of the graph drops it.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import torch
from torch.fx.node import has_side_effect

from pantile.errors import OperandKeyError
from pantile.ops.context import current
from pantile.ops.operands import require_tensor
from pantile.ops.tensor_text import FLOAT_FORMATS, TextStyle, tensor_text


@torch.library.custom_op("pantile::print_tensor", mutates_args=())
def _print_tensor(
    x: torch.Tensor,
    title: str,
    summarise_threshold: int,
    edge_items: int,
    max_line_width: int,
    digits: int,
    float_format: str,
    separator: str,
    open_bracket: str,
    close_bracket: str,
) -> None:
    style = TextStyle(
        summarise_threshold,
        edge_items,
        max_line_width,
        digits,
        float_format,
        separator,
        open_bracket,
        close_bracket,
    )
    prefix = f"{title}: " if title else ""
    sys.stderr.write(f"{prefix}{tensor_text(x, style)}\n")


@_print_tensor.register_fake
def _print_nothing(x: torch.Tensor, *style: object) -> None:
    return None


has_side_effect(torch.ops.pantile.print_tensor.default)


class _PrintGradient(torch.autograd.Function):
    """Identity whose backward prints."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, title: str, style: TextStyle) -> torch.Tensor:
        ctx.title, ctx.style = title, style
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        _emit(gradient, ctx.title, ctx.style)
        return gradient, None, None


def ipu_print_tensor(
    tensor: torch.Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> torch.Tensor:
    """Print `tensor` to stderr whenever the program runs, and its gradient when it trains.

    The gradient's title ends in "_gradient". On the CPU nothing is printed. `float_format` is
    "auto", "fixed", "scientific" or "none".
    """
    require_tensor("ipu_print_tensor", "tensor", tensor)
    if float_format not in FLOAT_FORMATS:
        raise OperandKeyError(
            f"ipu_print_tensor: float_format={float_format!r} is unknown",
            fix=f"pass one of {', '.join(map(repr, FLOAT_FORMATS))}",
        )
    if current() is None:
        return tensor
    style = TextStyle(
        summarise_threshold,
        edge_items,
        max_line_width,
        digits,
        float_format,
        separator,
        open_bracket,
        close_bracket,
    )
    _emit(tensor, title, style)
    if print_gradient and tensor.requires_grad:
        return _PrintGradient.apply(tensor, f"{title}_gradient", style)  # type: ignore[no-any-return,no-untyped-call]
    return tensor


def _emit(tensor: torch.Tensor, title: str, style: TextStyle) -> None:
    torch.ops.pantile.print_tensor(tensor.detach(), title, *dataclasses.astuple(style))
