"""PopTorch's extension module, as far as scripts reach into it: its error classes and a query."""

from pantile.errors import Error, RecoverableError, UnrecoverableError
from pantile.ops.context import isRunningOnIpu as isCompilingWithDispatcher

__all__ = ["Error", "RecoverableError", "UnrecoverableError", "isCompilingWithDispatcher"]
