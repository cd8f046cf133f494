"""PopTorch's extension module, as far as scripts reach into it: errors, a check, a query."""

from pantile.errors import Error, RecoverableError, UnrecoverableError
from pantile.ops.context import isRunningOnIpu as isCompilingWithDispatcher
from pantile.options.backend import validate_values as _validateOptions
from pantile.testing import DeviceFault as TestErrorType
from pantile.testing import raise_fault as _throwTestError

__all__ = [
    "Error",
    "RecoverableError",
    "TestErrorType",
    "UnrecoverableError",
    "_throwTestError",
    "_validateOptions",
    "isCompilingWithDispatcher",
]
