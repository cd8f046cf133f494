"""Operators of fixed shape around kernels whose result torch calls data-dependent.

    pantile::ctc_loss           aten::_ctc_loss, its table padded to the longest possible target
    pantile::lstsq              aten::linalg_lstsq of a matrix of full rank
    pantile::masked_sum         masked_select(x, mask).sum()
    pantile::prod_backward      the gradient of prod, which has one formula for each number of zeros
    pantile::attention          aten::_native_multi_head_attention
    pantile::encoder_layer      aten::_transformer_encoder_layer_fwd
    pantile::bce_with_logits    aten::binary_cross_entropy_with_logits, unknown to functorch

Each runs the very kernel that eager runs, so the bits are the same; a graph can hold it, because
its shape is known before it runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.library import custom_op

aten = torch.ops.aten
_broadcast: Callable[..., torch.Size] = torch.broadcast_shapes


@custom_op("pantile::ctc_loss", mutates_args=())
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor]:
    """Negative log-likelihoods, and the table that backward reads, padded with -inf."""
    loss, table = aten._ctc_loss.Tensor(
        log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )
    missing = _ctc_columns(targets) - table.shape[2]
    return loss, torch.nn.functional.pad(table, (0, missing), value=-math.inf)


@ctc_loss.register_fake
def _(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    zero_infinity: bool,
) -> tuple[Tensor, Tensor]:
    steps, batch = log_probs.shape[:2]
    table = log_probs.new_empty(batch, steps, _ctc_columns(targets))
    return log_probs.new_empty(batch), table


def _ctc_columns(targets: Tensor) -> int:
    """Blank, label, blank, … : no target is longer than a row (or all) of `targets`."""
    return 2 * targets.shape[-1] + 1


@custom_op("pantile::lstsq", mutates_args=())
def lstsq(a: Tensor, b: Tensor, rcond: float | None, driver: str) -> list[Tensor]:
    """Solution, residuals, rank and singular values."""
    found = list(aten.linalg_lstsq.default(a, b, rcond, driver=driver))
    if found[1].shape != _lstsq_shapes(a, b, rcond, driver)[1].shape:
        raise RuntimeError("lstsq: the matrix has not full rank, so there are no residuals")
    return found


@lstsq.register_fake
def _lstsq_shapes(a: Tensor, b: Tensor, rcond: float | None, driver: str) -> list[Tensor]:
    batch, (rows, columns) = a.shape[:-2], a.shape[-2:]
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    sides = b.shape[-1:] if not vector else ()
    whole = _broadcast(batch, b.shape[:-1] if vector else b.shape[:-2])
    solution = a.new_empty((*whole, columns, *sides))
    if not vector:  # LAPACK leaves its result in column-major order
        solution = a.new_empty((*whole, *sides, max(rows, columns))).mT[..., :columns, :]
    left = (*whole, *sides) if rows > columns and driver != "gelsy" else (0,)
    rank = torch.empty((0,) if driver == "gels" else batch, dtype=torch.int64)
    singular = (*batch, min(rows, columns)) if driver in ("gelsd", "gelss") else (0,)
    return [solution, a.new_empty(left), rank, a.new_empty(singular)]


@custom_op("pantile::masked_sum", mutates_args=())
def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """The sum of the elements that the mask selects."""
    return x.masked_select(mask).sum()


@masked_sum.register_fake
def _(x: Tensor, mask: Tensor) -> Tensor:
    return x.new_empty(())


@custom_op("pantile::prod_backward", mutates_args=())
def prod_backward(grad: Tensor, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    """What autograd computes for the input of `prod`."""
    with torch.enable_grad(), _autograd():
        leaf = x.detach().requires_grad_()
        result = leaf.prod() if dim is None else leaf.prod(dim, keepdim)
        (found,) = torch.autograd.grad(result, leaf, grad)
    return found.clone() if found.data_ptr() == grad.data_ptr() else found


@contextmanager
def _autograd() -> Iterator[None]:
    """Switch autograd on inside a kernel, where the dispatcher has it off."""
    key = torch._C.DispatchKey.AutogradFunctionality
    before = torch._C._dispatch_tls_is_dispatch_key_excluded(key)
    torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, before)


@prod_backward.register_fake
def _(grad: Tensor, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    return torch.empty_like(x)


@custom_op("pantile::bce_with_logits", mutates_args=())
def bce_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None, pos_weight: Tensor | None, reduction: int
) -> Tensor:
    """The loss in one kernel."""
    found: Tensor = aten.binary_cross_entropy_with_logits.default(
        x, target, weight, pos_weight, reduction
    )
    return found


@bce_with_logits.register_fake
def _(
    x: Tensor, target: Tensor, weight: Tensor | None, pos_weight: Tensor | None, reduction: int
) -> Tensor:
    return x.new_empty(_broadcast(x.shape, target.shape) if reduction == 0 else ())


@custom_op("pantile::attention", mutates_args=())
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: list[Tensor],
    mask: Tensor | None,
    heads: int,
    need_weights: bool,
    average: bool,
    mask_type: int | None,
) -> tuple[Tensor, Tensor]:
    """Multi-head attention in one kernel; `weights` are those of the two projections."""
    query, key, value = _as_given(query, key, value)
    out, scores = aten._native_multi_head_attention.default(
        query, key, value, query.shape[2], heads, *weights, mask, need_weights, average, mask_type
    )
    return out, scores if need_weights else query.new_empty(0)


def _as_given(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same object for equal operands: the kernel then makes one projection of all three."""
    if key.data_ptr() == query.data_ptr() and key.stride() == query.stride():
        key = query
    if value.data_ptr() == key.data_ptr() and value.stride() == key.stride():
        value = key
    return query, key, value


@attention.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: list[Tensor],
    mask: Tensor | None,
    heads: int,
    need_weights: bool,
    average: bool,
    mask_type: int | None,
) -> tuple[Tensor, Tensor]:
    batch, length, _ = query.shape
    out = query.new_empty(query.shape)
    if not need_weights:
        return out, query.new_empty(0)
    across = (batch, length, key.shape[1])
    return out, query.new_empty(across if average else (batch, heads, *across[1:]))


@custom_op("pantile::encoder_layer", mutates_args=())
def encoder_layer(
    x: Tensor,
    heads: int,
    attention_weights: list[Tensor],
    gelu: bool,
    norm_first: bool,
    eps: float,
    other_weights: list[Tensor],
    mask: Tensor | None,
    mask_type: int | None,
) -> Tensor:
    """A transformer encoder layer in one kernel."""
    found: Tensor = aten._transformer_encoder_layer_fwd.default(
        x, x.shape[-1], heads, *attention_weights, gelu, norm_first, eps, *other_weights, mask,
        mask_type,
    )  # fmt: skip
    return found


@encoder_layer.register_fake
def _(
    x: Tensor,
    heads: int,
    attention_weights: list[Tensor],
    gelu: bool,
    norm_first: bool,
    eps: float,
    other_weights: list[Tensor],
    mask: Tensor | None,
    mask_type: int | None,
) -> Tensor:
    return x.new_empty(x.shape)
