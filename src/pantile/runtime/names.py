"""Names of the tensors of a compiled step: those of its program, and of the update.

loss                                 the output that is trained
UpdatedVar___fc.weight               a parameter after the update
Accl1___fc.weight                    a piece of the optimizer's state
learningRate___specific___fc.weight  a number of the optimizer
"""

from __future__ import annotations

from collections.abc import Mapping

from pantile.program.naming import TensorNames
from pantile.program.program import Program
from pantile.program.spec import OutputKind
from pantile.runtime.device_state import DeviceOptimizerState
from pantile.runtime.optimizer import Update

UPDATED = "UpdatedVar___"


def tensor_names(program: Program, update: Update | None, *, loss: int | None) -> list[str]:
    """All names, each once; `loss` is the output that is trained."""
    names = dict.fromkeys(TensorNames(program).all)
    if loss is not None:
        names.setdefault("loss")
    for output in program.outputs_of(OutputKind.GRADIENT):
        names.setdefault(f"{UPDATED}{output.name}")
    return list({**names, **dict.fromkeys(update_values(update))})


def update_values(update: Update | None) -> Mapping[str, object]:
    """The optimizer's state and numbers as of now, by name."""
    if update is None:
        return {}
    state, numbers = DeviceOptimizerState(update, strict=False).read()
    return {**state, **numbers}
