"""PopTorch's profiling channels."""

from pantile.profiling import *  # noqa: F403
