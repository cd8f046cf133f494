"""How clients take the weight-sync classes off a model, and put them on again."""

from pantile import createPoptorchError, isRunningOnIpu
from pantile.runtime.wrap import rewrap_model as rewrapModelIfNecessary
from pantile.runtime.wrap import unwrap_model as unwrapModelIfNecessary

__all__ = [
    "createPoptorchError",
    "isRunningOnIpu",
    "rewrapModelIfNecessary",
    "unwrapModelIfNecessary",
]
