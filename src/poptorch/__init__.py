"""What `import poptorch` finds: Pantile's public names, and those that only scripts rely on."""

import os

import pantile
from pantile import *  # noqa: F403
from pantile.enums import Compiler as Compiler
from pantile.ops.module_text import print as print
from pantile.runtime.hardware import has_mlir_support as hasMlirSupportOnPlatform
from pantile.runtime.torch_ops import install
from poptorch import _impl, _logging, _poplar_executor, _utils, poptorch_core

__version__ = "3.4.0"

# Not `print`: `from poptorch import *` must leave the builtin alone.
__all__ = ["_impl", "_logging", "_poplar_executor", "_utils", "poptorch_core"]
__all__ += ["Compiler", "hasMlirSupportOnPlatform", *pantile.__all__]

# Libraries that talk to network cards need it set before they fork; PopTorch sets it on import.
os.environ.setdefault("RDMAV_FORK_SAFE", "1")

install()
