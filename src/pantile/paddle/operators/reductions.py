"""Sums, means and norms over dims; cumulative sums; sorting and searching."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pantile.paddle.call import Call, Table, Tensor, Translation, one_tensor, with_attributes


def _reduction(
    function: Callable[[Tensor, list[int], bool], Tensor],
) -> Translation:
    def translate(call: Call) -> None:
        x = call.tensor()
        dims = call.integers("dim", [0])
        if call.flag("reduce_all") or not dims or len(dims) == x.dim():
            dims = list(range(x.dim()))
        result = function(x, dims, call.flag("keep_dim")) if dims else x.clone()
        wanted = call.operator.attributes.get("out_dtype", -1)
        call.put(result if wanted in (-1, None) else result.to(call.dtype("out_dtype")))

    return translate


def _product(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    for dim in sorted((dim % x.dim() for dim in dims), reverse=True):
        x = torch.prod(x, dim, keepdim=keep)
    return x


def _logsumexp(call: Call, x: Tensor) -> Tensor:
    dims = call.integers("axis", [0])
    if call.flag("reduce_all") or not dims:
        dims = list(range(x.dim()))
    return torch.logsumexp(x, dims, call.flag("keepdim"))


def _p_norm(call: Call, x: Tensor) -> Tensor:
    dim, order = call.integer("axis", -1), call.number("porder", 2.0)
    if call.flag("asvector"):
        flat: Tensor = torch.linalg.vector_norm(x.reshape(-1), order)
        return flat.reshape([1] * x.dim()) if call.flag("keepdim") else flat
    norms: Tensor = torch.linalg.vector_norm(x, order, dim=dim, keepdim=call.flag("keepdim"))
    return norms


def _dist(call: Call) -> None:
    difference = call.tensor("X") - call.tensor("Y")
    call.put(torch.linalg.vector_norm(difference, call.number("p", 2.0)))


def _cumsum(call: Call, x: Tensor) -> Tensor:
    dim = call.integer("axis", -1)
    if call.flag("flatten"):
        x, dim = x.reshape(-1), 0
    if call.flag("reverse"):
        x = x.flip(dim)
    total = torch.cumsum(x, dim)
    if call.flag("exclusive"):
        total = total - x
    total = total.to(x.dtype)
    return total.flip(dim) if call.flag("reverse") else total


def _extreme_index(
    function: Callable[..., Tensor],
) -> Translation:
    def translate(call: Call) -> None:
        x, keep = call.tensor(), call.flag("keepdims")
        if call.flag("flatten"):
            index = function(x.reshape(-1)).reshape([1] * x.dim() if keep else [])
        else:
            index = function(x, int(call.integer("axis", -1)), keepdim=keep)
        call.put(index.to(call.dtype("dtype", torch.int64)))

    return translate


def _argsort(call: Call) -> None:
    values, indices = torch.sort(
        call.tensor(),
        dim=call.integer("axis", -1),
        descending=call.flag("descending"),
        stable=True,
    )
    call.put(values)
    call.put(indices, "Indices")


def _top_k(call: Call) -> None:
    given = call.optional("K")
    count = call.integer("k", 1) if given is None else int(given)
    values, indices = torch.topk(
        call.tensor(),
        count,
        dim=call.integer("axis", -1),
        largest=call.flag("largest", True),
        sorted=True,
    )
    call.put(values)
    call.put(indices, "Indices")


def _squared_l2_norm(x: Tensor) -> Tensor:
    return x.square().sum().reshape(1)


_REDUCTIONS: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "reduce_all": lambda x, dims, keep: torch.all(x, dims, keep),
    "reduce_any": lambda x, dims, keep: torch.any(x, dims, keep),
    "reduce_max": torch.amax,
    "reduce_mean": lambda x, dims, keep: torch.mean(x, dims, keep),
    "reduce_min": torch.amin,
    "reduce_prod": _product,
    "reduce_sum": lambda x, dims, keep: torch.sum(x, dims, keep),
}

TABLE: Table = {
    **{name: _reduction(function) for name, function in _REDUCTIONS.items()},
    "arg_max": _extreme_index(torch.argmax),
    "arg_min": _extreme_index(torch.argmin),
    "argsort": _argsort,
    "cumsum": with_attributes(_cumsum),
    "dist": _dist,
    "logsumexp": with_attributes(_logsumexp),
    "mean": one_tensor(torch.mean),
    "p_norm": with_attributes(_p_norm),
    "squared_l2_norm": one_tensor(_squared_l2_norm),
    "top_k": _top_k,
    "top_k_v2": _top_k,
}
