"""PopTorch's experimental names."""

from pantile.runtime.device_function import IPUContext as IPUContext

__all__ = ["IPUContext"]
