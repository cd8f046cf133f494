"""PopTorch's experimental names."""

from pantile.runtime.device_function import IPUContext as IPUContext
from pantile.runtime.device_scope import IPUScope as IPUScope

__all__ = ["IPUContext", "IPUScope"]
