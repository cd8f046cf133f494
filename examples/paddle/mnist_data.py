"""The MNIST images next to the PopTorch example, as NumPy arrays."""

import gzip
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parents[1] / "mnist" / "data"


def load_images(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images in [-1, 1] and labels of "train" or "t10k"."""
    pixels = gzip.decompress((FOLDER / f"{part}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((FOLDER / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    images = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 1, 28, 28)
    return images.astype("float32") / 127.5 - 1, np.frombuffer(labels, np.uint8, offset=8)
