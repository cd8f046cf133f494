"""The executor under the module name that clients import it from."""

from pantile.runtime.executor import PoplarExecutor

__all__ = ["PoplarExecutor"]
