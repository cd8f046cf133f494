"""Read MNIST files and draw digits as text."""

import gzip
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

MEAN = 0.13  # of all training pixels


def load_images(folder: Path, part: str) -> TensorDataset:
    """Read images and labels of "train" or "t10k" from gzipped IDX files."""
    pixels = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    images = torch.frombuffer(bytearray(pixels[16:]), dtype=torch.uint8).view(-1, 1, 28, 28)
    return TensorDataset(images / 255 - MEAN, torch.tensor(list(labels[8:])))


def as_text(image: torch.Tensor) -> str:
    """Draw a 28x28 image with characters, two rows in one line."""
    rows = ((image[0, ::2] + MEAN) * 9).round().int().tolist()
    return "\n".join("".join(" .:-=+*#%@"[value] for value in row) for row in rows)
