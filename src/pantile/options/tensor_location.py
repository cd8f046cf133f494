"""`Options.TensorLocations`: where the IPU would keep each kind of tensor.

None of this changes a number: it is recorded for the machine model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pantile.errors import OptionRangeError, OptionTypeError
from pantile.options.storage import Field, OptionGroup
from pantile.options.validate import flag, instance_of, integer, not_negative

MIN_IO_TILES = 32
MAX_IO_TILES = 192


class TensorLocationSettings:
    """Where one kind of tensor is kept, and from which size on."""

    def __init__(self) -> None:
        self._settings: dict[str, int] = {}

    def minElementsForOffChip(self, min_elements: int) -> Self:
        """Keep tensors with fewer elements on the chip."""
        return self._count("minElementsForOffChip", min_elements)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> Self:
        """Do not shard tensors with fewer elements."""
        return self._count("minElementsForReplicatedTensorSharding", min_elements)

    def useOnChipStorage(self, use: bool | None = True) -> Self:
        """Keep the tensor on the chip or off it; None leaves the choice to the compiler."""
        if use is None:
            self._settings.pop("onChip", None)
            return self
        return self._switch("useOnChipStorage", use, key="onChip")

    def useReplicatedTensorSharding(self, use: bool = True) -> Self:
        """Give each replica a share of the tensor instead of a copy."""
        return self._switch("useReplicatedTensorSharding", use)

    def useIOTilesToLoad(self, use: bool = True) -> Self:
        """Load the tensor through the IO tiles."""
        return self._switch("useIOTilesToLoad", use)

    def useIOTilesToStore(self, use: bool = True) -> Self:
        """Store the tensor through the IO tiles."""
        return self._switch("useIOTilesToStore", use)

    def toDict(self) -> dict[str, int]:
        """The settings that were made, as ints."""
        return dict(self._settings)

    def __repr__(self) -> str:
        shown = ", ".join(f"{key}={value}" for key, value in self._settings.items())
        return f"TensorLocationSettings({shown})"

    def _switch(self, name: str, value: Any, *, key: str | None = None) -> Self:
        self._settings[key or name] = int(flag(f"TensorLocationSettings.{name}", value))
        return self

    def _count(self, name: str, value: Any) -> Self:
        self._settings[name] = not_negative(f"TensorLocationSettings.{name}", value)
        return self


def _io_tiles(option: str, value: Any) -> int:
    tiles = integer(option, value)
    if not MIN_IO_TILES <= tiles <= MAX_IO_TILES or tiles % 2:
        raise OptionRangeError(
            f"{option} must be an even number between {MIN_IO_TILES} and "
            f"{MAX_IO_TILES}, not {tiles}",
            fix=f"write {option}({MIN_IO_TILES})",
        )
    return tiles


class _TensorLocationOptions(OptionGroup):
    """Where activations, weights, optimizer state and accumulators are kept."""

    PREFIX = "TensorLocations."
    FIELDS: ClassVar[Mapping[str, Field]] = {
        "location_activation": Field(instance_of(dict), {}, setter="setActivationLocation"),
        "location_weight": Field(instance_of(dict), {}, setter="setWeightLocation"),
        "location_optimizer": Field(instance_of(dict), {}, setter="setOptimizerLocation"),
        "location_accumulator": Field(instance_of(dict), {}, setter="setAccumulatorLocation"),
        "num_io_tiles": Field(_io_tiles, 0, setter="numIOTiles"),
    }

    location_activation: dict[str, int]
    location_weight: dict[str, int]
    location_optimizer: dict[str, int]
    location_accumulator: dict[str, int]
    num_io_tiles: int

    def setActivationLocation(self, location: TensorLocationSettings) -> Self:
        """Say where activations are kept."""
        return self.set(location_activation=_settings("setActivationLocation", location))

    def setWeightLocation(self, location: TensorLocationSettings) -> Self:
        """Say where weights are kept."""
        return self.set(location_weight=_settings("setWeightLocation", location))

    def setOptimizerLocation(self, location: TensorLocationSettings) -> Self:
        """Say where the state of the optimizer is kept."""
        return self.set(location_optimizer=_settings("setOptimizerLocation", location))

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> Self:
        """Say where gradient accumulators are kept."""
        return self.set(location_accumulator=_settings("setAccumulatorLocation", location))

    def numIOTiles(self, num_tiles: int) -> Self:
        """Set tiles aside for transfers: an even number from 32 to 192."""
        return self.set(num_io_tiles=num_tiles)


def _settings(setter: str, location: Any) -> dict[str, int]:
    if not isinstance(location, TensorLocationSettings):
        raise OptionTypeError(
            f"TensorLocations.{setter} takes a TensorLocationSettings, not {location!r}",
            fix=f"write TensorLocations.{setter}("
            "poptorch.TensorLocationSettings().useOnChipStorage(True))",
        )
    return location.toDict()
