"""PopTorch's options, the private classes included."""

from pantile.options import *  # noqa: F403
