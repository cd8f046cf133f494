"""`Options._Popart`: settings of the old backend by their raw names.

Scripts set them by name; a few have a meaning here, and these live nowhere else:

    Training.setAutomaticLossScaling(True)  ->  options["automaticLossScalingSettings.enabled"]
    Precision.enableStochasticRounding(True) -> options["enableStochasticRounding"]
    _Popart.set("enableStochasticRounding", True)    the same setting, the same place
"""

from __future__ import annotations

import copy
from typing import Any, Self

from pantile.options.storage import Freezable
from pantile.options.validate import instance_of, integer, text

AUTOMATIC_LOSS_SCALING = "automaticLossScalingSettings.enabled"
CACHE_PATH = "cachePath"
CACHING = "enableEngineCaching"
CONVOLUTION = "convolutionOptions"
CYCLE_COUNT = "instrumentWithHardwareCycleCounter"
ENGINE = "engineOptions"
FLOATING_POINT_EXCEPTIONS = "enableFloatingPointExceptions"
MATMUL_PARTIALS = "partialsTypeMatMuls"
STABLE_NORM = "enableStableNorm"
STOCHASTIC_ROUNDING = "enableStochasticRounding"
SYNTHETIC_DATA = "syntheticDataMode"


class _PopartOptions(Freezable):
    """Raw settings of the old backend, kept in `options`."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {CYCLE_COUNT: False, "rearrangeAnchorsOnHost": False}

    def set(self, key: str, value: Any) -> Self:
        """Store one setting."""
        name = text("_Popart.set", key)
        self.checkIsFrozen(name)
        self.options[name] = copy.deepcopy(value)
        return self

    def setEngineOptions(self, engine_options: dict[str, str]) -> Self:
        """Add settings of the engine; one given before under the same key is replaced."""
        return self._merge(ENGINE, "_Popart.setEngineOptions", engine_options)

    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> Self:
        """Switch graph patterns on or off, starting from an optimisation level."""
        checked = instance_of(dict)("_Popart.setPatterns", patterns)
        self.set("patterns", checked)
        return self.set("patterns_level", integer("_Popart.setPatterns level", level))

    def setConvolutionOptions(self, convolution_options: dict[str, str]) -> Self:
        """Add settings of convolutions, keeping those given before under other keys."""
        return self._merge(CONVOLUTION, "_Popart.setConvolutionOptions", convolution_options)

    def is_on(self, key: str) -> bool:
        """Whether a switch was set to something true."""
        return bool(self.options.get(key, False))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options!r})"

    def _merge(self, key: str, option: str, settings: Any) -> Self:
        checked = instance_of(dict)(option, settings)
        return self.set(key, {**self.options.get(key, {}), **checked})
