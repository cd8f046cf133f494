"""The stock Paddle wheel: which release, and what of it is asked for here.

Everything that needs Paddle goes through `require_paddle`, so that a missing or another release is
one clear message. Only graph *building* needs the wheel; saved models are read without it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from typing import Any

import numpy as np
import torch

from pantile.errors import Error
from pantile.paddle.description import DTYPES
from pantile.paddle.scope import as_array, as_tensor

SUPPORTED = "2.6.2"
"""The last release whose static API is complete in the form that IPU scripts use."""


def installed_version() -> str | None:
    """The release of the wheel that would be imported; None if there is none."""
    if importlib.util.find_spec("paddle") is None:
        return None
    for name in ("paddlepaddle", "paddlepaddle-gpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return str(importlib.import_module("paddle").__version__)


def require_paddle() -> Any:
    """The module `paddle`, if it is the release that is supported."""
    version = installed_version()
    if version is None:
        raise Error(
            "Paddle is not installed: a program can only be built with it",
            fix=f"pip install 'pantile[paddle]' (paddlepaddle=={SUPPORTED}); saved models run "
            "without it, with pantile.paddle.load_inference_model",
        )
    if version != SUPPORTED:
        raise Error(
            f"Paddle {version} is installed; IPU programs need {SUPPORTED}, whose static graphs "
            "are complete in the form they use",
            fix=f"pip install paddlepaddle=={SUPPORTED} in an environment of its own; models saved "
            "by any release run with pantile.paddle.load_inference_model",
        )
    return importlib.import_module("paddle")


class PaddleScope:
    """A scope of Paddle's."""

    def __init__(self, scope: Any) -> None:
        self._scope = scope
        self._place = require_paddle().CPUPlace()

    def find(self, name: str) -> torch.Tensor | None:
        """A copy of a variable's value; None if it has none."""
        variable = self._scope.find_var(name)
        if variable is None:
            return None
        held = variable.get_tensor()
        if not held._is_initialized():
            return None
        dtype = DTYPES.get(int(held._dtype()))
        return as_tensor(np.array(held), dtype).clone()

    def store(self, name: str, value: torch.Tensor) -> None:
        """Give a variable a value."""
        # A copy: the scope may keep the memory it is given.
        self._scope.var(name).get_tensor().set(as_array(value).copy(), self._place)


def names_of(variables: Any) -> list[str]:
    """Names, given as names or as variables, alone or in lists, which may be nested."""
    if variables is None:
        return []
    if isinstance(variables, (list, tuple)):
        return [name for item in variables for name in names_of(item)]
    return [variables if isinstance(variables, str) else str(variables.name)]
