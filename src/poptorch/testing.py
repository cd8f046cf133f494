"""PopTorch's helpers for tests."""

from pantile.testing import *  # noqa: F403
