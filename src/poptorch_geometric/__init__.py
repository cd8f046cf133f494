"""What `import poptorch_geometric` finds: PyTorch Geometric on Pantile."""

from pantile import geometric
from pantile.geometric import *  # noqa: F403

__version__ = "3.4.0"  # the version of the interface

__all__ = ["__version__"]
__all__ += geometric.__all__
