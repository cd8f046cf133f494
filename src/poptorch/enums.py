"""PopTorch's enums."""

from pantile.enums import *  # noqa: F403
