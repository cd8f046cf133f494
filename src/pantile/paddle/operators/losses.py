"""Losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from pantile.paddle.call import Call, Table, Tensor


def _chosen(log_share: Tensor, label: Tensor, axis: int, ignored: int) -> Tensor:
    """-log p of the labelled class; the result has the shape of the label."""
    axis %= log_share.dim()
    keeps_dim = label.dim() == log_share.dim()
    flat = log_share.movedim(axis, -1)
    labels = (label.squeeze(axis) if keeps_dim else label).to(torch.int64)
    loss = F.nll_loss(
        flat.reshape(-1, flat.shape[-1]),
        labels.reshape(-1),
        reduction="none",
        ignore_index=ignored,
    ).reshape(labels.shape)
    return loss.unsqueeze(axis) if keeps_dim else loss


def _softmax_with_cross_entropy(call: Call) -> None:
    logits, label, axis = call.tensor("Logits"), call.tensor("Label"), call.integer("axis", -1)
    if call.flag("use_softmax", True):
        log_share = F.log_softmax(logits, axis)
        call.put(log_share.exp(), "Softmax")
    else:
        log_share = torch.log(logits)
        call.put(logits, "Softmax")
    if call.flag("soft_label"):
        call.put(-(label * log_share).sum(axis, keepdim=True), "Loss")
    else:
        call.put(_chosen(log_share, label, axis, call.integer("ignore_index", -100)), "Loss")


def _cross_entropy(call: Call) -> None:
    """Of shares that a softmax made before."""
    log_share, label = torch.log(call.tensor()), call.tensor("Label")
    if call.flag("soft_label"):
        call.put(-(label * log_share).sum(-1, keepdim=True), "Y")
        return
    call.put(_chosen(log_share, label, -1, call.integer("ignore_index", -100)), "Y")


_REDUCTIONS = {0: "sum", 1: "mean", 2: "none"}


def _reduction(call: Call) -> str:
    """Paddle writes a number, PopART a word."""
    written = call.operator.attributes.get("reduction", 1)
    return written.lower() if isinstance(written, str) else _REDUCTIONS[call.integer("reduction")]


def _safe_log(shares: Tensor) -> Tensor:
    """As PopART's Nll has it: the log of a share of zero is finite, and so is its gradient.

    A softmax in half precision gives zeros soon, and one of them makes all weights NaN.
    """
    half = shares.dtype is torch.float16
    value = torch.log(shares.clamp(min=6.104e-05 if half else 1e-7)).detach()
    least = shares.detach().clamp(min=6.104e-05 if half else 1e-10)
    slope = torch.log(shares + (least - shares).detach())  # its gradient is 1 / least
    return slope + (value - slope).detach()


def _custom_nll_loss(call: Call) -> None:
    shares, label = call.tensor("X"), call.tensor("Y").to(torch.int64)
    log_share = shares if call.flag("inputIsLogProbability") else _safe_log(shares)
    written = str(call.operator.attributes.get("ignoreIndex", "None"))
    ignored = -100 if written == "None" else int(written)
    loss = F.nll_loss(
        log_share.reshape(-1, log_share.shape[-1]),
        label.reshape(-1),
        reduction=_reduction(call),
        ignore_index=ignored,
    )
    call.put(loss.reshape(label.shape if loss.dim() else [1]))


def _identity_loss(call: Call) -> None:
    """Only reduces here; which variable is trained is said by the program's parts."""
    x, reduction = call.tensor(), _REDUCTIONS[call.integer("reduction", 1)]
    call.put(x if reduction == "none" else x.sum() if reduction == "sum" else x.mean())


def _in_single(tensor: Tensor) -> Tensor:
    """For functions that torch has no half kernel of."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _bce_loss(call: Call) -> None:
    x, label = call.tensor(), call.tensor("Label")
    loss = F.binary_cross_entropy(_in_single(x), _in_single(label), reduction="none")
    call.put(loss.to(x.dtype))


def _sigmoid_cross_entropy(call: Call) -> None:
    x, label = call.tensor(), call.tensor("Label")
    ignored = call.number("ignore_index", -100)
    kept = (label != ignored).to(x.dtype)
    loss = F.binary_cross_entropy_with_logits(x, label, reduction="none")
    weight = call.optional("pos_weight")
    if weight is not None:
        loss = F.binary_cross_entropy_with_logits(x, label, pos_weight=weight, reduction="none")
    loss = loss * kept
    call.put(loss / torch.clamp(kept.sum(), min=1e-5) if call.flag("normalize") else loss)


def _kldiv_loss(call: Call) -> None:
    x, target, reduction = call.tensor(), call.tensor("Target"), call.text("reduction", "mean")
    positive = target > 0
    safe = torch.where(positive, target, torch.ones_like(target))
    loss = torch.where(positive, target * (torch.log(safe) - x), torch.zeros_like(x))
    if reduction == "batchmean":
        call.put(loss.sum() / x.shape[0], "Loss")
    elif reduction == "none":
        call.put(loss, "Loss")
    else:
        call.put(loss.sum() if reduction == "sum" else loss.mean(), "Loss")


def _huber_loss(call: Call) -> None:
    delta, residual = call.number("delta", 1.0), call.tensor("Y") - call.tensor("X")
    size = residual.abs()
    call.put(residual, "Residual")
    squared = 0.5 * residual * residual
    call.put(torch.where(size <= delta, squared, delta * (size - 0.5 * delta)))


def _rank_loss(call: Call) -> None:
    difference = call.tensor("Left") - call.tensor("Right")
    call.put(F.softplus(difference) - call.tensor("Label") * difference)


def _warpctc(call: Call) -> None:
    logits, labels = call.tensor("Logits"), call.tensor("Label")
    times, sizes = call.tensor("LogitsLength"), call.tensor("LabelLength")
    log_share = F.log_softmax(_in_single(logits), -1)
    loss = F.ctc_loss(
        log_share,
        labels.to(torch.int64),
        times.to(torch.int64),
        sizes.to(torch.int64),
        call.integer("blank", 0),
        "none",
    )
    if call.flag("norm_by_times"):  # only the gradient is divided
        loss = loss.detach() + (loss - loss.detach()) / times.to(loss.dtype)
    call.put(loss.reshape(-1, 1).to(logits.dtype), "Loss")


TABLE: Table = {
    "bce_loss": _bce_loss,
    "cross_entropy": _cross_entropy,
    "cross_entropy2": _cross_entropy,
    "custom_nll_loss": _custom_nll_loss,
    "huber_loss": _huber_loss,
    "identity_loss": _identity_loss,
    "kldiv_loss": _kldiv_loss,
    "rank_loss": _rank_loss,
    "sigmoid_cross_entropy_with_logits": _sigmoid_cross_entropy,
    "softmax_with_cross_entropy": _softmax_with_cross_entropy,
    "warpctc": _warpctc,
}
