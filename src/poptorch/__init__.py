"""What `import poptorch` finds: Pantile's public names, and those that only scripts rely on."""

from pantile import *  # noqa: F403
from pantile import optim, profiling
from pantile.ops.module_text import print
from poptorch import _impl, _poplar_executor, _utils, enums, ops, options

__version__ = "3.4.0"

__all__ = [
    "_impl",
    "_poplar_executor",
    "_utils",
    "enums",
    "ops",
    "optim",
    "options",
    "print",
    "profiling",
]
