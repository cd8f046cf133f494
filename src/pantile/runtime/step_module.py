"""Any Python function over a module as the `forward` of a model, so that executors can run it.

    function(tensors) ── StepModule ──► executor ──► programs, engines, replicas, device iterations

The function takes a flat list of tensors, and further state that it may write to; it returns
`(tensors, note)`. The note is a plain object that describes what the tensors are. It is made when
the function is recorded, and comes back from every run with the tensors of that run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from pantile.options import Options
from pantile.runtime.executor import PoplarExecutor

State = Mapping[str, Any]
Function = Callable[[Sequence[torch.Tensor], State], tuple[list[torch.Tensor], Any]]


class Note:
    """Anything that travels with a program; its content is no data of the program."""

    def __init__(self, content: Any) -> None:
        self.content = content


class StepModule(nn.Module):
    """A module whose forward is a function over another one."""

    def __init__(
        self,
        function: Function,
        module: nn.Module,
        state: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.model = module
        self.function = function
        for name, tensor in (state or {}).items():
            self.register_buffer(name, tensor)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """What the function returns, with its note as a constant."""
        found, note = self.function(tensors, dict(self._buffers))
        return found, Note(note)


class StepProgram:
    """The executor of one function, and what it was recorded with."""

    def __init__(
        self,
        function: Function,
        module: nn.Module,
        options: Options,
        *,
        name: str,
        optimizer: torch.optim.Optimizer | None = None,
        state: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        kind = type(name, (StepModule,), {"__module__": StepModule.__module__})
        self.executor = PoplarExecutor(
            kind(function, module, state),
            options,
            training=optimizer is not None,
            optimizer=optimizer,
        )

    def record(self, tensors: Sequence[torch.Tensor], *, at_once: bool = False) -> None:
        """Record the function for such tensors, without a run.

        `at_once`: its first run is native, as it would be the next one of a run that goes on.
        """
        with torch.inference_mode(False), torch.no_grad():
            self.executor._prepared(tuple(tensors), {})
            if at_once:
                self.executor._start_natively(*tensors)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Any]:
        """Run; the tensors of this run, and the note of the recording."""
        found, note = self.executor(*tensors)
        return found, note.content

    def destroy(self) -> None:
        """Let go of the programs."""
        self.executor.destroy()
