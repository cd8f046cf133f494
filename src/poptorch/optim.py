"""PopTorch's optimizers."""

from pantile.optim import *  # noqa: F403
