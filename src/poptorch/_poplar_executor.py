"""The executor under the module name that clients import it from."""

from pantile.runtime.executor import PoplarExecutor
from pantile.runtime.substitution import register_substitution

__all__ = ["PoplarExecutor", "_OverwriteContextManager"]


class _OverwriteContextManager:
    """Where PyTorch Geometric's IPU package registers what it swaps during capture."""

    registerSubsitutionManager = staticmethod(register_substitution)
