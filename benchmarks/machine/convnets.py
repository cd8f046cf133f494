"""The convolutional networks of the published results, as plain modules."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    """1x1, 3x3 (grouped in ResNeXt), 1x1, and a way round."""

    def __init__(self, inside: int, middle: int, outside: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, middle, 1, bias=False), nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, stride, 1, groups=groups, bias=False)
        self.bn2, self.bn3 = nn.BatchNorm2d(middle), nn.BatchNorm2d(outside)
        self.conv3 = nn.Conv2d(middle, outside, 1, bias=False)
        self.around = None
        if stride != 1 or inside != outside:
            around = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.around = nn.Sequential(around, nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + (x if self.around is None else self.around(x)))


class Residual(nn.Module):
    """ResNet-50 v1.5, ResNet-101, ResNeXt-101 (32 groups of 4)."""

    def __init__(self, depths: tuple[int, ...], *, groups: int = 1, width: int = 64) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks: list[nn.Module] = []
        inside = 64
        for stage, depth in enumerate(depths):
            middle, outside = width * groups * 2**stage, 256 * 2**stage
            for index in range(depth):
                stride = 2 if stage and not index else 1
                blocks.append(Bottleneck(inside, middle, outside, stride, groups))
                inside = outside
        self.blocks = nn.ModuleList(blocks)
        self.scores = nn.Linear(inside, 1000)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """The loss, or the scores where there are no labels."""
        x = images.to(self.scores.weight.dtype) * (1 / 255)
        x = F.max_pool2d(F.relu(self.bn(self.stem(x))), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        scores = self.scores(x.mean((2, 3)))
        return scores if labels is None else F.cross_entropy(scores, labels)


class Inverted(nn.Module):
    """A mobile block: widen, convolve in groups, squeeze and excite, narrow (EfficientNet)."""

    def __init__(
        self, inside: int, outside: int, kernel: int, stride: int, expand: int, group: int
    ) -> None:
        super().__init__()
        middle = inside * expand
        self.widen = nn.Conv2d(inside, middle, 1, bias=False) if expand > 1 else None
        self.norms = nn.ModuleList(nn.GroupNorm(4, n) for n in (middle, middle, outside))
        groups = max(1, middle // group)
        self.depth = nn.Conv2d(
            middle, middle, kernel, stride, kernel // 2, groups=groups, bias=False
        )
        squeezed = max(1, inside // 4)
        self.squeeze, self.excite = nn.Linear(middle, squeezed), nn.Linear(squeezed, middle)
        self.narrow = nn.Conv2d(middle, outside, 1, bias=False)
        self.around = stride == 1 and inside == outside

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        out = x
        if self.widen is not None:
            out = F.silu(self.norms[0](self.widen(out)))
        out = F.silu(self.norms[1](self.depth(out)))
        weights = self.excite(F.silu(self.squeeze(out.mean((2, 3))))).sigmoid()
        out = self.norms[2](self.narrow(out * weights[:, :, None, None]))
        return out + x if self.around else out


class MobileNet(nn.Module):
    """EfficientNet with groups of `group` channels: rows of (kernel, stride, expand, out, n)."""

    def __init__(self, rows: list[tuple[int, int, int, int, int]], stem: int, group: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, stem, 3, 2, 1, bias=False), nn.GroupNorm(4, stem)
        blocks: list[nn.Module] = []
        inside = stem
        for kernel, stride, expand, outside, count in rows:
            for index in range(count):
                step = 1 if index else stride
                blocks.append(Inverted(inside, outside, kernel, step, expand, group))
                inside = outside
        self.blocks = nn.ModuleList(blocks)
        self.last, self.scores = nn.Conv2d(inside, 4 * inside, 1), nn.Linear(4 * inside, 1000)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        x = images.to(self.scores.weight.dtype) * (1 / 255)
        x = F.silu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.scores(F.silu(self.last(x)).mean((2, 3))), labels)
