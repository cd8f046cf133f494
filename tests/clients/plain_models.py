"""Models written with `torch.nn` alone, in the way tutorials write them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tests.clients.client import Batch, Client
from torch import nn

VOCABULARY, LENGTH, TAGS = 50, 12, 7


class Translator(nn.Module):
    """`nn.Transformer` with embeddings, a causal mask and padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(LENGTH, 32))
        self.transformer = nn.Transformer(
            32, 4, num_encoder_layers=2, num_decoder_layers=2, dim_feedforward=64, batch_first=True
        )
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Cross-entropy of the next target token."""
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH - 1)
        hidden = self.transformer(
            self.embedding(source) + self.positions,
            self.embedding(target[:, :-1]) + self.positions[:-1],
            tgt_mask=mask,
            src_key_padding_mask=source == 0,
        )
        logits = self.head(hidden)
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=0)


class Tagger(nn.Module):
    """A recurrent sequence tagger, two layers in both directions."""

    def __init__(self, cell: type[nn.LSTM] | type[nn.GRU] | type[nn.RNN]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.recurrent = cell(
            16, 24, num_layers=2, bidirectional=True, dropout=0.2, batch_first=True
        )
        self.head = nn.Linear(48, TAGS)

    def forward(self, words: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        """Cross-entropy over all positions."""
        hidden, _ = self.recurrent(self.embedding(words))
        return F.cross_entropy(self.head(hidden).transpose(1, 2), tags)


class DoubleConvolution(nn.Sequential):
    """Two 3x3 convolutions with batch norm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """Two levels down, two up, with skip connections; one way up bilinear, one transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.top, self.middle = DoubleConvolution(1, 8), DoubleConvolution(8, 16)
        self.bottom = DoubleConvolution(16, 32)
        self.raise_bottom = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.raise_middle = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.join_middle, self.join_top = DoubleConvolution(32, 16), DoubleConvolution(24, 8)
        self.head = nn.Conv2d(8, 1, 1)

    def forward(self, picture: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Binary cross-entropy per pixel plus a soft Dice term."""
        top = self.top(picture)
        middle = self.middle(F.max_pool2d(top, 2))
        up = self.raise_bottom(self.bottom(F.max_pool2d(middle, 2)))
        up = self.join_middle(torch.cat([middle, up], 1))
        up = self.join_top(torch.cat([top, self.raise_middle(up)], 1))
        logits = self.head(up)
        overlap = 2 * (logits.sigmoid() * mask).sum() / (logits.sigmoid().sum() + mask.sum() + 1)
        return F.binary_cross_entropy_with_logits(logits, mask) + 1 - overlap


class VariationalAutoencoder(nn.Module):
    """Reparameterised latent, evidence lower bound."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.Tanh())
        self.mean, self.log_variance = nn.Linear(32, 8), nn.Linear(32, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss and reconstruction."""
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        latent = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        decoded = torch.sigmoid(self.decoder(latent))
        divergence = -0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        return F.binary_cross_entropy(decoded, x, reduction="sum") + divergence, decoded


class DenoisingAutoencoder(nn.Module):
    """Strided convolutions down, transposed ones up; the input is corrupted inside forward."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.GroupNorm(2, 8),
            nn.GELU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.InstanceNorm2d(16, affine=True, track_running_stats=True),
            nn.SiLU(),
        )
        self.up = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1),
            nn.PReLU(8),
            nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean squared error and reconstruction."""
        corrupted = F.dropout(x + 0.1 * torch.randn_like(x), 0.3, self.training)
        decoded = self.up(self.down(corrupted))
        return F.mse_loss(decoded, x), decoded


class TwoTowers(nn.Module):
    """Bags of embeddings on both sides, contrastive loss within the batch, tied temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.EmbeddingBag(VOCABULARY, 16, mode="mean")
        self.answers = nn.EmbeddingBag(VOCABULARY, 16, mode="sum")
        self.temperature = nn.Parameter(torch.tensor(0.07).log())
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, query: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        """Symmetric cross-entropy of the similarity matrix."""
        self.seen += query.shape[0]
        left = F.normalize(self.queries(query), dim=-1)
        right = F.normalize(self.answers(answer), dim=-1)
        scores = left @ right.T / self.temperature.exp()
        wanted = torch.arange(len(query))
        return (F.cross_entropy(scores, wanted) + F.cross_entropy(scores.T, wanted)) / 2


def _sentences() -> Batch:
    words = torch.randint(1, VOCABULARY, (3, LENGTH))
    padded = torch.where(
        torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 3], [5]]), words, 0
    )
    return {"source": padded, "target": torch.randint(1, VOCABULARY, (3, LENGTH))}


def _tagged() -> Batch:
    return {
        "words": torch.randint(0, VOCABULARY, (3, LENGTH)),
        "tags": torch.randint(0, TAGS, (3, LENGTH)),
    }


def _masked_pictures() -> Batch:
    return {
        "picture": torch.randn(2, 1, 16, 16),
        "mask": torch.randint(0, 2, (2, 1, 16, 16)).float(),
    }


def _pairs() -> Batch:
    return {name: torch.randint(0, VOCABULARY, (4, 6)) for name in ("query", "answer")}


CLIENTS = (
    Client("transformer", Translator, _sentences),
    Client("lstm_tagger", lambda: Tagger(nn.LSTM), _tagged),
    Client("gru_tagger", lambda: Tagger(nn.GRU), _tagged, "sgd"),
    Client("rnn_tagger", lambda: Tagger(nn.RNN), _tagged),
    Client("u_net", UNet, _masked_pictures, "sgd"),
    Client("variational_autoencoder", VariationalAutoencoder, lambda: {"x": torch.rand(4, 64)}),
    Client("denoising_autoencoder", DenoisingAutoencoder, lambda: {"x": torch.rand(2, 1, 16, 16)}),
    Client("two_towers", TwoTowers, _pairs, "sgd"),
)
