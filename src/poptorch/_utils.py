"""Private helpers that PyTorch-Geometric clients import."""

from pantile.data.combine import *  # noqa: F403
