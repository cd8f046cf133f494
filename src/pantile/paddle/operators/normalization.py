"""Normalisation over batches, layers, groups and instances; dropout."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from pantile.paddle.call import Call, Table, Tensor


def _batch_norm(call: Call) -> None:
    x, scale, bias = call.tensor(), call.tensor("Scale"), call.tensor("Bias")
    mean, variance = call.tensor("Mean"), call.tensor("Variance")
    epsilon = call.number("epsilon", 1e-5)
    last = call.text("data_layout", "NCHW") == "NHWC" and x.dim() > 2
    if last:
        x = x.movedim(-1, 1)
    testing = call.flag("is_test") and not call.flag("trainable_statistics")
    if testing or call.flag("use_global_stats"):
        y = F.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)
    else:
        y = F.batch_norm(x, None, None, scale, bias, True, 0.0, epsilon)
        _moving_averages(call, x, mean, variance)
    call.put(y.movedim(1, -1) if last else y, "Y")


def _moving_averages(call: Call, x: Tensor, mean: Tensor, variance: Tensor) -> None:
    """Paddle averages the biased variance; torch would average the unbiased one."""
    keep = call.number("momentum", 0.9)
    given = call.optional("MomentumTensor")
    factor: Tensor | float = keep if given is None else given.reshape(()).to(mean.dtype)
    with torch.no_grad():
        dims = [dim for dim in range(x.dim()) if dim != 1]
        seen = x.detach().to(mean.dtype)
        batch_variance, batch_mean = torch.var_mean(seen, dims, correction=0)
        call.put(mean * factor + batch_mean * (1 - factor), "MeanOut")
        call.put(variance * factor + batch_variance * (1 - factor), "VarianceOut")


def _layer_norm(call: Call) -> None:
    x, first = call.tensor(), call.integer("begin_norm_axis", 1)
    shape = list(x.shape[first:])
    scale, bias = call.optional("Scale"), call.optional("Bias")
    weight = None if scale is None else scale.reshape(shape).to(x.dtype)
    offset = None if bias is None else bias.reshape(shape).to(x.dtype)
    call.put(F.layer_norm(x, shape, weight, offset, call.number("epsilon", 1e-5)), "Y")
    _put_moments(call, x.reshape([*x.shape[:first], -1]), [-1])


def _group_norm(call: Call) -> None:
    x, groups = call.tensor(), call.integer("groups")
    last = call.text("data_layout", "NCHW") == "NHWC"
    if last:
        x = x.movedim(-1, 1)
    epsilon = call.number("epsilon", 1e-5)
    y = F.group_norm(x, groups, call.optional("Scale"), call.optional("Bias"), epsilon)
    call.put(y.movedim(1, -1) if last else y, "Y")
    _put_moments(call, x.reshape(x.shape[0], groups, -1), [-1])


def _put_moments(call: Call, grouped: Tensor, dims: list[int]) -> None:
    """Mean and variance are results that few programs read; what nobody reads is dropped."""
    with torch.no_grad():
        variance, mean = torch.var_mean(grouped.detach(), dims, correction=0)
        call.put(mean, "Mean")
        call.put(variance, "Variance")


def _instance_norm(call: Call) -> None:
    y = F.instance_norm(
        call.tensor(),
        None,
        None,
        call.optional("Scale"),
        call.optional("Bias"),
        True,
        0.0,
        call.number("epsilon", 1e-5),
    )
    call.put(y, "Y")


def _affine_channel(call: Call) -> None:
    x = call.tensor()
    last = call.text("data_layout", "NCHW") == "NHWC"
    shape = [-1] if last else [1, -1] + [1] * (x.dim() - 2)
    call.put(x * call.tensor("Scale").reshape(shape) + call.tensor("Bias").reshape(shape))


def _data_norm(call: Call) -> None:
    """Normalise by sums that were collected before."""
    count, total = call.tensor("BatchSize"), call.tensor("BatchSum")
    means = total / count
    scales = torch.sqrt(count / call.tensor("BatchSquareSum"))
    y = (call.tensor() - means) * scales
    if call.has("scale_w") and call.flag("enable_scale_and_shift"):
        y = y * call.tensor("scale_w") + call.tensor("bias")
    call.put(y, "Y")
    call.put(means, "Means")
    call.put(scales, "Scales")


def _dropout(call: Call) -> None:
    x, share = call.tensor(), call.number("dropout_prob", 0.5)
    given = call.optional("DropoutProb")
    if given is not None:
        share = float(given)
    upscales = call.text("dropout_implementation", "downgrade_in_infer") == "upscale_in_train"
    if call.flag("is_test"):
        call.put(x if upscales else x * (1.0 - share))
    elif share == 0.0:
        call.put(x)
    elif upscales:
        call.put(F.dropout(x, share, training=True))
    else:
        keep = torch.rand_like(x, dtype=torch.float32) >= share
        call.put(x * keep.to(x.dtype))


TABLE: Table = {
    "affine_channel": _affine_channel,
    "batch_norm": _batch_norm,
    "data_norm": _data_norm,
    "dropout": _dropout,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "layer_norm": _layer_norm,
    "sync_batch_norm": _batch_norm,
}
