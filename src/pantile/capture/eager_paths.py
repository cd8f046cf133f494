"""Take the ways through torch that eager takes, where torch itself would choose another one.

Torch's own code asks "is this a tensor subclass?", "is a mode active?", and answers with a slower,
traceable formula. The result differs from eager's in the last bits, or at padded positions. Here
the questions are answered as for plain tensors, and ops whose shape torch calls data-dependent are
recorded as operators of fixed shape (`pantile.ops.eager_kernels`).

    Python level      `take_eager_path`, called by `Watch` for the functions of `EAGER_PATHS`
    dispatcher level  `shape_rules`, a decomposition table for make_fx
    module level      `fast_paths.py`, for nn.MultiheadAttention and nn.TransformerEncoder
    graph level       `restore_masked_sums`, `shield`
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx import traceback as fx_traceback
from torch.utils._python_dispatch import TorchDispatchMode

from pantile.errors import CaptureError
from pantile.ops import eager_kernels
from pantile.program.nodes import without_value

aten = torch.ops.aten


def _values_only(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Singular values without vectors, unless a gradient needs the vectors."""
    tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return func(*args, **kwargs)
    with _WithoutVectors():  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)


class _WithoutVectors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (aten._linalg_svd.default, aten._linalg_eigh.default):
            args = (*args[:2], False) if len(args) > 1 else (*args, *_SECOND[func], False)
        return func(*args, **(kwargs or {}))


_SECOND: dict[OpOverload, tuple[Any]] = {
    aten._linalg_svd.default: (False,),
    aten._linalg_eigh.default: ("L",),
}


def _gaussian_nll(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The check that no variance is negative moves from Python into the graph."""
    with _CheckedInGraph():  # type: ignore[no-untyped-call]
        return func(*args, **kwargs)


class _CheckedInGraph(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is aten._local_scalar_dense.default:
            torch._assert_async(args[0].logical_not(), "var has negative entry/entries")
            return False
        return func(*args, **(kwargs or {}))


def _prod(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """A product whose gradient has eager's formula for the zeros that are there."""
    x, dim, keepdim, dtype = _prod_arguments(*args, **kwargs)
    if isinstance(dim, str) or not (torch.is_grad_enabled() and x.requires_grad) or x.dim() == 0:
        return func(*args, **kwargs)
    x = x if dtype is None else x.to(dtype)
    return _Prod.apply(x, dim, keepdim)  # type: ignore[no-untyped-call]


def _prod_arguments(
    input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> tuple[Tensor, Any, bool, Any]:
    return input, dim, keepdim, dtype


class _Prod(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.dim, ctx.keepdim = dim, keepdim
        return x.prod() if dim is None else x.prod(dim, keepdim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return eager_kernels.prod_backward(grad, x, ctx.dim, ctx.keepdim), None, None


def _ctc_loss_of(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The loss by the formula torch has for it; its own code writes to memory at once."""
    return _ctc_by_tensors(*args, **kwargs)


def _ctc_by_tensors(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    lengths = [_lengths(input_lengths), _lengths(target_lengths)]
    batched = log_probs.dim() == 3
    rows = log_probs if batched else log_probs.unsqueeze(1)
    losses = aten._ctc_loss.Tensor(rows, targets.long(), *lengths, blank, zero_infinity)[0]
    if zero_infinity:
        losses = torch.where(losses == math.inf, losses.new_zeros(()), losses)
    if reduction == "mean":
        return (losses / lengths[1].to(losses.dtype).clamp_min(1)).mean()
    if reduction == "sum":
        return losses.sum()
    return losses if batched else losses.squeeze(0)


def _bincount(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Counts of fixed size, `minlength`; that no value is larger is checked in the graph."""
    return _bincount_of_size(*args, **kwargs)


def _bincount_of_size(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    if minlength <= 0:
        raise CaptureError(
            "bincount: without minlength the size of its result depends on the data",
            fix="pass minlength, one more than the largest value",
        )
    torch._assert_async(
        ((input >= 0) & (input < minlength)).all(),
        f"bincount: a value is negative, or not below minlength={minlength}",
    )
    if weights is None:
        counts = torch.zeros(minlength, dtype=torch.int64)
        return counts.index_add(0, input.long(), torch.ones_like(input, dtype=torch.int64))
    kind = weights.dtype if weights.dtype is torch.float32 else torch.float64
    return torch.zeros(minlength, dtype=kind).index_add(0, input.long(), weights.to(kind))


def _random(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """`random_` between bounds: its own node has a name, `from`, that Python code cannot have."""
    bounds = [*args[1:], *(kwargs[name] for name in ("from", "to") if name in kwargs)]
    if not bounds:
        return func(*args, **kwargs)
    low, high = bounds if len(bounds) == 2 else (0, bounds[0])
    if high is None:
        return func(*args, **kwargs)
    x = args[0]
    drawn = torch.randint(low, high, x.shape, dtype=x.dtype, generator=kwargs.get("generator"))
    return x.copy_(drawn)


def _matmul(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Expand a batch of one; torch squeezes it away only if it needs a gradient."""
    if kwargs or len(args) != 2 or not all(isinstance(t, Tensor) and t.dim() == 3 for t in args):
        return func(*args, **kwargs)
    single, other = sorted(args, key=lambda t: int(t.shape[0]))
    if single.shape[0] != 1 or other.shape[0] == 1 or single.requires_grad:
        return func(*args)
    a, b = args if func is not Tensor.__rmatmul__ else reversed(args)
    count = other.shape[0]
    return torch.bmm(a.expand(count, -1, -1), b.expand(count, -1, -1))


def _cross_entropy(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Mark the nodes, so that `restore_masked_sums` finds the sum of the class weights."""
    with fx_traceback.annotate({"formula": "cross_entropy"}):
        return func(*args, **kwargs)


def _left_aligned(func: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Say that the padding is at the end; what would depend on it is refused below."""
    return True


def _nested(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    raise CaptureError(
        "nn.TransformerEncoder in evaluation mode drops padded positions (src_key_padding_mask) by "
        "a nested tensor, whose size depends on the data",
        fix="build it with enable_nested_tensor=False, or call "
        "torch.backends.mha.set_fastpath_enabled(False) first: padded positions are then computed",
    )


EAGER_PATHS: dict[Any, Callable[..., Any]] = {
    torch._nested_tensor_from_mask: _nested,
    torch._nested_tensor_from_mask_left_aligned: _left_aligned,
    Tensor.random_: _random,
    torch.bincount: _bincount,
    Tensor.bincount: _bincount,
    F.cross_entropy: _cross_entropy,
    F.linear_cross_entropy: _cross_entropy,
    F.ctc_loss: _ctc_loss_of,
    torch.matmul: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
    Tensor.__rmatmul__: _matmul,
    F.gaussian_nll_loss: _gaussian_nll,
    torch.prod: _prod,
    Tensor.prod: _prod,
} | dict.fromkeys(
    [
        torch.linalg.cond,
        torch.linalg.eigvalsh,
        torch.linalg.matrix_norm,
        torch.linalg.matrix_rank,
        torch.linalg.norm,
        torch.linalg.svdvals,
        torch.norm,
        torch.nuclear_norm,
        Tensor.norm,
    ],
    _values_only,
)
"""Functions that need help to compute what eager computes."""


def take_eager_path(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function so that the graph gets eager's own formula."""
    return EAGER_PATHS[func](func, args, kwargs)


def shape_rules() -> dict[Any, Callable[..., Any]]:
    """Decompositions to operators of fixed shape."""
    return {
        aten._ctc_loss.default: _ctc_loss,
        aten._ctc_loss.Tensor: _ctc_loss,
        aten._native_multi_head_attention.default: _attention,
        aten._transformer_encoder_layer_fwd.default: _encoder_layer,
        aten.linalg_lstsq.default: _lstsq,
    }


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> Any:
    lengths = [_lengths(input_lengths), _lengths(target_lengths)]
    return eager_kernels.ctc_loss(log_probs, targets, *lengths, blank, zero_infinity)


def _lengths(given: Any) -> Tensor:
    if isinstance(given, Tensor):
        return given.to(torch.int64).reshape(-1)
    return torch.tensor(list(given), dtype=torch.int64)


def _lstsq(a: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    return tuple(eager_kernels.lstsq(a, b, rcond, driver or "gelsy"))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average: bool = True,
    mask_type: int | None = None,
) -> Any:
    weights = [qkv_weight, qkv_bias, proj_weight, proj_bias]
    return eager_kernels.attention(
        query, key, value, weights, mask, heads, need_weights, average, mask_type
    )


def _encoder_layer(x: Tensor, embed_dim: int, heads: int, *rest: Any) -> Any:
    attention, (gelu, norm_first, eps), others = rest[:4], rest[4:7], rest[7:15]
    mask, mask_type = (*rest[15:], None, None)[:2]
    return eager_kernels.encoder_layer(
        x, heads, list(attention), gelu, norm_first, eps, list(others), mask, mask_type
    )


_SHIELDED = {
    aten.binary_cross_entropy_with_logits.default: torch.ops.pantile.bce_with_logits.default
}


def shield(graph: fx.Graph) -> None:
    """Rename ops that functorch would take apart while the graph is made functional."""
    _rename(graph, _SHIELDED)


def unshield(graph: fx.Graph) -> None:
    """Undo `shield`."""
    _rename(graph, {new: old for old, new in _SHIELDED.items()})


def _rename(graph: fx.Graph, names: dict[OpOverload, OpOverload]) -> None:
    for old, new in names.items():
        for node in graph.find_nodes(op="call_function", target=old):
            node.target, node.args, node.kwargs = new, *_filled(old, node.args, node.kwargs)


def _filled(op: OpOverload, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with defaults in their places: a custom op has none."""
    given = dict(zip((a.name for a in op._schema.arguments), args, strict=False)) | kwargs
    return tuple(given.get(a.name, a.default_value) for a in op._schema.arguments), {}


_MASKED_FILLS = (aten.masked_fill.Tensor, aten.masked_fill_.Tensor)


def restore_masked_sums(graph: fx.Graph) -> None:
    """Sum the selected elements only, as eager does.

    where(mask, grad, 0).sum()         ->   masked_sum(grad, mask)
    weights.masked_fill_(mask, 0).sum()  ->   masked_sum(weights, ~mask)

    The first is the gradient of the value of `masked_fill`, the second is in `cross_entropy` with
    weights and label smoothing. For tensor subclasses torch records the left-hand sides, which add
    zeros too, and so in another order.
    """
    masks = {node.args[1] for node in graph.nodes if node.target in _MASKED_FILLS}
    for node in graph.find_nodes(op="call_function", target=aten.sum.default):
        chosen = node.args[0]
        if node.meta.get("autograd_backward"):
            if chosen.target is aten.where.self and chosen.args[0] in masks:
                _sum_selected(node, chosen.args[1], chosen.args[0])
        elif _is_sum_of_class_weights(node):
            with graph.inserting_before(node):
                kept = graph.call_function(aten.logical_not.default, (chosen.args[1],))
            kept.meta = without_value(node)
            _sum_selected(node, chosen.args[0], kept)


def _is_sum_of_class_weights(node: fx.Node) -> bool:
    if (node.meta.get("custom") or {}).get("formula") != "cross_entropy":
        return False
    filled: Any = node.args[0]
    return (
        filled.target is aten.masked_fill_.Scalar and filled.args[0].target is aten.gather.default
    )


def _sum_selected(node: fx.Node, values: fx.Node, mask: fx.Node) -> None:
    node.target = torch.ops.pantile.masked_sum.default
    node.args, node.kwargs = (values, mask), {}
