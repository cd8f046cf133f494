"""What every lowering produces: something that runs one Program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pantile.program.program import Program


class Executable(Protocol):
    """One Program, ready to run.

    `run` takes one value per `Program.inputs` (tensors, or Python floats for scalars), writes the
    epilogue into the tensors it was given, and returns one value per `Program.outputs`. Returned
    tensors may share memory with inputs or with each other: the caller copies what it keeps.
    """

    @property
    def program(self) -> Program: ...

    def run(self, values: Sequence[Any]) -> tuple[Any, ...]: ...
