"""How clients take the weight-sync classes off a model and put them on, and ask about capture."""

from pantile import createPoptorchError, isRunningOnIpu
from pantile.ops.context import isRunningOnIpu as isDispatchTracing
from pantile.runtime.wrap import rewrap_model as _restoreWrapperIfNecessary
from pantile.runtime.wrap import rewrap_model as rewrapModelIfNecessary
from pantile.runtime.wrap import unwrap_model as unwrapModelIfNecessary

__all__ = [
    "_restoreWrapperIfNecessary",
    "createPoptorchError",
    "isDispatchTracing",
    "isRunningOnIpu",
    "rewrapModelIfNecessary",
    "unwrapModelIfNecessary",
]
