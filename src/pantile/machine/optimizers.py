"""What an optimizer costs: cycles for each weight, bytes of state for each weight."""

from __future__ import annotations

from dataclasses import dataclass

from pantile.errors import Error
from pantile.machine.targets import Chip

#: Cycles for four weights and number of moments, by the name of the optimizer's class.
_KNOWN = {
    "sgd": (6.0, 0),
    "momentum": (9.0, 1),
    "adam": (32.0, 2),
    "adamw": (34.0, 2),
    "lamb": (40.0, 2),
    "rmsprop": (24.0, 2),
    "none": (0.0, 0),
}


@dataclass(frozen=True)
class OptimizerModel:
    """An optimizer by name, and how wide its state is."""

    name: str = "sgd"
    moment_bytes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.name not in _KNOWN:
            raise Error(
                f"no cost is known for the optimizer {self.name!r}",
                fix=f"choose from {', '.join(_KNOWN)}",
            )

    @property
    def bytes_per_weight(self) -> int:
        """State for each weight; moments are float32 unless said otherwise."""
        return sum(self.moment_bytes) if self.moment_bytes else 4 * _KNOWN[self.name][1]

    def state_bytes(self, elements: float) -> float:
        """State of so many weights."""
        return elements * self.bytes_per_weight

    def cycles(self, chip: Chip, elements: float, tensors: int) -> float:
        """One update; LAMB has two norms over every tensor, which take four steps."""
        steps = 6 if self.name == "lamb" else 2
        per_tensor = steps * (chip.step_cycles + 167)
        return elements / chip.tiles / 4 * _KNOWN[self.name][0] + tensors * per_tensor


def optimizer_named(name: str, *, momentum: bool = False) -> OptimizerModel:
    """The model for the class of a user's optimizer; an unknown one counts as Adam."""
    key = name.lower()
    if key == "sgd" and momentum:
        key = "momentum"
    return OptimizerModel(key if key in _KNOWN else "adam")
