"""Operators that pass a tensor on and say something about it; YOLO's boxes."""

from __future__ import annotations

import torch

from pantile.ops import ipu_print_tensor, recomputationCheckpoint
from pantile.paddle.call import Call, Table, Tensor, one_tensor


def _same(x: Tensor) -> Tensor:
    return x


def _print(call: Call) -> None:
    x = call.tensor("In")
    name = call.operator.inputs["In"][0]
    backward = call.text("print_phase", "BOTH").upper() != "FORWARD"
    call.put(ipu_print_tensor(x, call.text("message", "") or name, print_gradient=backward))


def _checkpoint(x: Tensor) -> Tensor:
    marked: Tensor = recomputationCheckpoint(x)
    return marked


def _no_effect(call: Call) -> None:
    """Carries settings of an optimizer; the update operators say the same."""


def _yolo_box(call: Call) -> None:
    x, image_sizes = call.tensor(), call.tensor("ImgSize")
    anchors, classes = call.integers("anchors"), call.integer("class_num")
    samples, _, rows, columns = x.shape
    count = len(anchors) // 2
    cells = x.reshape(samples, count, 5 + classes, rows, columns)
    height, width = (image_sizes[:, k].to(x.dtype).reshape(-1, 1, 1, 1) for k in (0, 1))
    boxes = _boxes(call, cells, height, width)
    confidence = torch.sigmoid(cells[:, :, 4])
    sure = (confidence >= call.number("conf_thresh")).to(x.dtype)
    call.put((boxes * sure.unsqueeze(-1)).reshape(samples, -1, 4), "Boxes")
    scores = torch.sigmoid(cells[:, :, 5:]) * (confidence * sure).unsqueeze(2)
    call.put(scores.permute(0, 1, 3, 4, 2).reshape(samples, -1, classes), "Scores")


def _boxes(call: Call, cells: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """Left, top, right and bottom of each box, in pixels of the image."""
    dtype, (rows, columns) = cells.dtype, cells.shape[-2:]
    anchors, cell_size = call.integers("anchors"), call.integer("downsample_ratio")
    stretch = call.number("scale_x_y", 1.0)
    shift = -0.5 * (stretch - 1.0)
    along = torch.arange(columns, dtype=dtype)
    down = torch.arange(rows, dtype=dtype).reshape(-1, 1)
    anchor_width, anchor_height = (
        torch.tensor(anchors[k::2], dtype=dtype).reshape(1, -1, 1, 1) for k in (0, 1)
    )
    x = (along + torch.sigmoid(cells[:, :, 0]) * stretch + shift) / columns * width
    y = (down + torch.sigmoid(cells[:, :, 1]) * stretch + shift) / rows * height
    half_width = torch.exp(cells[:, :, 2]) * anchor_width / (cell_size * columns) * width / 2
    half_height = torch.exp(cells[:, :, 3]) * anchor_height / (cell_size * rows) * height / 2
    left, right = x - half_width, x + half_width
    top, bottom = y - half_height, y + half_height
    if call.flag("clip_bbox", True):
        left, top = left.clamp(min=0), top.clamp(min=0)
        right, bottom = torch.minimum(right, width - 1), torch.minimum(bottom, height - 1)
    return torch.stack([left, top, right, bottom], -1)


TABLE: Table = {
    "checkpointoutput": one_tensor(_checkpoint),
    "detach": one_tensor(torch.Tensor.detach),
    "identity": one_tensor(_same),
    "popart_optimizer": _no_effect,
    "print": _print,
    "yolo_box": _yolo_box,
}
