"""PopTorch's extension module, as far as scripts reach into it: errors, a check, a query."""

from pantile.errors import Error, RecoverableError, UnrecoverableError
from pantile.ops.context import isRunningOnIpu as isCompilingWithDispatcher
from pantile.options.backend import validate_values as _validateOptions

__all__ = [
    "Error",
    "RecoverableError",
    "UnrecoverableError",
    "_validateOptions",
    "isCompilingWithDispatcher",
]
