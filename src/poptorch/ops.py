"""PopTorch's ops."""

from pantile.ops import *  # noqa: F403
