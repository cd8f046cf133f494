"""The transformers of the published results, as plain modules: one layer of each kind."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Multi-head attention as models of that time wrote it: scores are a tensor."""

    def __init__(
        self, width: int, heads: int, dropout: float = 0.0, *, separate: bool = False
    ) -> None:
        super().__init__()
        self.heads = heads
        parts = 3 if separate else 1
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width // parts) for _ in range(parts))
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)

    def project(self, x: Tensor) -> list[Tensor]:
        """Queries, keys and values: one product, or three."""
        batch, length, width = x.shape
        parts = [linear(x) for linear in self.qkv]
        if len(parts) == 1:
            parts = list(parts[0].split(width, -1))
        return [p.view(batch, length, self.heads, -1).permute(0, 2, 1, 3) for p in parts]

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend to all positions, or to those the mask allows."""
        q, k, v = self.project(x)
        scores = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        return self.mix(scores if mask is None else scores + mask, v)

    def mix(self, scores: Tensor, v: Tensor) -> Tensor:
        """From the scores on."""
        return self.gather(self.drop(scores.softmax(-1)), v)

    def gather(self, weights: Tensor, v: Tensor) -> Tensor:
        """Values weighted, heads joined."""
        mixed = torch.matmul(weights, v).permute(0, 2, 1, 3)
        return self.out(mixed.reshape(mixed.shape[0], mixed.shape[1], -1))


class CrossAttention(Attention):
    """Queries from a decoder, keys and values from an encoder."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads, separate=True)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:  # type: ignore[override]
        """Attend to `memory`."""
        sources = (x, memory, memory)
        q, k, v = (
            linear(source).view(len(x), source.shape[1], self.heads, -1).permute(0, 2, 1, 3)
            for linear, source in zip(self.qkv, sources, strict=True)
        )
        return self.mix(torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5, v)


class Layer(nn.Module):
    """Attention and feed-forward, with norms before (ViT, GPT) or after (BERT) them."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        norm_first: bool = False,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        masked: bool = False,
        separate: bool = False,
    ) -> None:
        super().__init__()
        self.attention = Attention(width, heads, attention_dropout, separate=separate)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.drop = nn.Dropout(dropout)
        self.norm_first, self.masked = norm_first, masked

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        mask = x.new_zeros(x.shape[0], 1, 1, x.shape[1]) if self.masked else None
        if self.norm_first:
            x = x + self.drop(self.attention(self.norm1(x), mask))
            return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))
        x = self.norm1(x + self.drop(self.attention(x, mask)))
        return self.norm2(x + self.drop(self.down(F.gelu(self.up(x)))))


class TokenEmbedding(nn.Module):
    """Words, positions and segments, normalised."""

    def __init__(self, words: int, width: int, length: int, *, segments: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.segments = nn.Embedding(2, width) if segments else None
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up."""
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        if self.segments is not None:
            x = x + self.segments(ids % 2)
        return self.drop(self.norm(x))


class MaskedWords(nn.Module):
    """BERT's pretraining heads: the hidden words, and whether sentences follow each other."""

    def __init__(self, words: int, width: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.transform, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.decoder = nn.Linear(width, words)
        self.pooler, self.follows = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        hidden = self.norm(F.gelu(self.transform(x[:, : self.hidden])))
        words = self.decoder(hidden).flatten(0, 1)
        follows = self.follows(torch.tanh(self.pooler(x[:, 0])))
        target = labels[:, : self.hidden].flatten()
        return F.cross_entropy(words, target) + F.cross_entropy(follows, labels[:, 0] % 2)


class NextWord(nn.Module):
    """The head of a language model: a score for every word at every place."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.decoder = nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        return F.cross_entropy(self.decoder(self.norm(x)).flatten(0, 1), labels.flatten())


class Span(nn.Module):
    """SQuAD's head: where the answer begins and ends."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ends = nn.Linear(width, 2)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        begin, end = self.ends(x).split(1, -1)
        target = labels[:, 0]
        begins = F.cross_entropy(begin.squeeze(-1), target)
        return begins + F.cross_entropy(end.squeeze(-1), target)


class Patches(nn.Module):
    """Images of bytes to patches, with a class token and positions (ViT)."""

    def __init__(self, width: int, size: int, tokens: int, *, extra: int = 1) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, size, size)
        self.first = nn.Parameter(torch.zeros(1, extra, width)) if extra else None
        self.places = nn.Parameter(torch.zeros(1, tokens + extra, width))
        self.drop = nn.Dropout(0.1)

    def forward(self, images: Tensor) -> Tensor:
        """Cut, embed, add positions."""
        x = self.cut(images).flatten(2).transpose(1, 2)
        if self.first is not None:
            x = torch.cat([self.first.expand(len(x), -1, -1), x], 1)
        return self.drop(x + self.places)


class Classes(nn.Module):
    """Norm, one token or the mean of all, and a score for each class."""

    def __init__(self, width: int, classes: int = 1000, *, mean: bool = False) -> None:
        super().__init__()
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, classes)
        self.mean = mean

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        x = self.norm(x)
        return F.cross_entropy(self.scores(x.mean(1) if self.mean else x[:, 0]), labels)


class WindowAttention(Attention):
    """Attention within windows of 7 by 7, with a bias looked up by relative position."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.table = nn.Parameter(torch.zeros(13 * 13, heads))
        self.register_buffer("places", torch.zeros(49 * 49, dtype=torch.int64))
        self.places: Tensor

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """`mask` keeps apart what only a shift brought into one window."""
        q, k, v = self.project(x)
        bias = self.table[self.places].view(49, 49, -1).permute(2, 0, 1).contiguous()
        scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2)) + bias
        if mask is not None:
            windows = scores.view(-1, len(mask), *scores.shape[1:]) + mask[None, :, None]
            scores = windows.view(scores.shape)
        return self.mix(scores, v)


class DropPath(nn.Module):
    """Leaves out whole samples of a branch."""

    def forward(self, x: Tensor) -> Tensor:
        """Keep a sample with probability 0.9."""
        kept = torch.rand(len(x), 1, 1, dtype=x.dtype).add(0.9).floor()
        return x / 0.9 * kept


class SwinLayer(nn.Module):
    """Attention in windows of 7 by 7, shifted in every second layer."""

    def __init__(self, width: int, heads: int, side: int, *, shifted: bool) -> None:
        super().__init__()
        self.side, self.shift = side, 3 if shifted and side > 7 else 0
        self.attention = WindowAttention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.path = DropPath()
        mask = torch.zeros((side // 7) ** 2, 49, 49)
        self.register_buffer("mask", mask if self.shift else None)

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        batch, length, width = x.shape
        image = self.norm1(x).view(batch, self.side, self.side, width)
        if self.shift:
            image = torch.roll(image, (-self.shift, -self.shift), (1, 2))
        across = self.side // 7
        windows = image.view(batch, across, 7, across, 7, width).transpose(2, 3)
        windows = self.attention(windows.reshape(-1, 49, width), self.mask)
        image = windows.view(batch, across, across, 7, 7, width).transpose(2, 3)
        image = image.reshape(batch, self.side, self.side, width)
        if self.shift:
            image = torch.roll(image, (self.shift, self.shift), (1, 2))
        x = x + self.path(image.view(batch, length, width))
        return x + self.path(self.down(F.gelu(self.up(self.norm2(x)))))


class Merge(nn.Module):
    """Four neighbouring patches become one of twice the width."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.norm = nn.LayerNorm(4 * width)
        self.reduce = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Merge."""
        image = x.view(len(x), self.side, self.side, -1)
        corners = [image[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
        return self.reduce(self.norm(torch.cat(corners, -1).flatten(1, 2)))


class Subsampling(nn.Module):
    """Two convolutions that leave one of four frames (Conformer)."""

    def __init__(self, width: int, bands: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, width, 3, 2), nn.Conv2d(width, width, 3, 2)
        self.out = nn.Linear(width * (((bands - 1) // 2 - 1) // 2), width)

    def forward(self, frames: Tensor) -> Tensor:
        """Frames to tokens."""
        x = F.relu(self.conv2(F.relu(self.conv1(frames.unsqueeze(1)))))
        return self.out(x.transpose(1, 2).flatten(2))


class RelativeAttention(Attention):
    """Attention with a second product for positions, and a mask that multiplies (Conformer)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads, separate=True)
        self.position = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.zeros(2, heads, 1, width // heads))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend."""
        batch, length, _ = x.shape
        q, k, v = self.project(x)
        place = self.position(x[:1]).view(1, length, self.heads, -1).permute(0, 2, 3, 1)
        scores = torch.matmul(q + self.bias[0], k.transpose(-1, -2))
        scores = scores + torch.matmul(q + self.bias[1], place.expand(batch, -1, -1, -1))
        scores = scores / q.shape[-1] ** 0.5
        if mask is None:
            return self.mix(scores, v)
        weights = (scores * mask + (mask - 1) * 1e3).softmax(-1) * mask
        return self.gather(weights, v)


class ConformerLayer(nn.Module):
    """Half a feed-forward, attention, a convolution in time, half a feed-forward."""

    def __init__(self, width: int, heads: int, inner: int, kernel: int) -> None:
        super().__init__()
        self.up1, self.down1 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.up2, self.down2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.attention = RelativeAttention(width, heads)
        self.gate, self.point = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depth = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(6))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        drop, norms = self.drop, self.norms
        mask = x.new_ones(len(x), 1, x.shape[1], x.shape[1])
        x = x.clone()  # the original maps its tensors anew at both ends of a layer
        x = x + 0.5 * drop(self.down1(drop(F.silu(self.up1(norms[0](x))))))
        x = x + drop(self.attention(norms[1](x), mask))
        inner = self.depth(F.glu(self.gate(norms[2](x).transpose(1, 2)), 1))
        inner = F.silu(norms[3](inner.transpose(1, 2))).transpose(1, 2)
        x = x + drop(self.point(inner).transpose(1, 2))
        x = x + 0.5 * drop(self.down2(drop(F.silu(self.up2(norms[4](x))))))
        return norms[5](x).clone()


class SpeechDecoder(nn.Module):
    """Layers over the text with a look at the sound, and both losses (Conformer)."""

    def __init__(self, width: int, heads: int, words: int, layers: int, inner: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.own = nn.ModuleList(Attention(width, heads, separate=True) for _ in range(layers))
        self.cross = nn.ModuleList(CrossAttention(width, heads) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, inner) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(inner, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 * layers))
        self.scores, self.ctc = nn.Linear(width, words), nn.Linear(width, words)

    def forward(self, memory: Tensor, labels: Tensor) -> Tensor:
        """The loss; the sound's own loss is a sum over its scores."""
        x = self.embed(labels)
        for index, (own, cross, up, down) in enumerate(
            zip(self.own, self.cross, self.up, self.down, strict=True)
        ):
            norms = self.norms[3 * index : 3 * index + 3]
            x = x + own(norms[0](x))
            x = x + cross(norms[1](x), memory)
            x = x + down(F.relu(up(norms[2](x))))
        spoken = self.ctc(memory).log_softmax(-1).mean()
        return F.cross_entropy(self.scores(x).flatten(0, 1), labels.flatten()) - spoken
