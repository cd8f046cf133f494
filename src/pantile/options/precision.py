"""`Options.Precision` and `Options.Jit`: how numbers are computed, and what is left of tracing."""

from __future__ import annotations

import logging
from typing import Any, Self

import torch

from pantile.errors import OptionError
from pantile.options import popart
from pantile.options.popart import _PopartOptions
from pantile.options.storage import OptionGroup
from pantile.options.validate import flag, zero_or_one_as_flag

_logger = logging.getLogger("poptorch::python")

_PARTIALS = {torch.float32: "float", torch.float16: "half"}


def _warn_deprecated(option: str) -> None:
    _logger.warning("%s is deprecated and has no effect: remove the call", option)


class _PrecisionOptions(OptionGroup):
    """Options about the precision of the computation."""

    PREFIX = "Precision."

    def __init__(self, popart_options: _PopartOptions) -> None:
        super().__init__()
        self._popart = popart_options

    def enableFloatingPointExceptions(self, enabled: bool) -> Self:
        """Raise when an operation overflows or has no real result."""
        checked = flag("Precision.enableFloatingPointExceptions", enabled)
        self._popart.set(popart.FLOATING_POINT_EXCEPTIONS, checked)
        return self

    def enableStochasticRounding(self, enabled: bool) -> Self:
        """Round half precision results up or down at random, in proportion to their distance."""
        checked = flag("Precision.enableStochasticRounding", zero_or_one_as_flag(enabled))
        self._popart.set(popart.STOCHASTIC_ROUNDING, checked)
        return self

    def setPartialsType(self, dtype: torch.dtype) -> Self:
        """Choose the type of partial sums in convolutions and matrix products."""
        if not isinstance(dtype, torch.dtype) or dtype not in _PARTIALS:
            raise OptionError(
                f"Precision.setPartialsType takes torch.float or torch.half, not {dtype!r}",
                fix="write Precision.setPartialsType(torch.half)",
            )
        self._popart.setConvolutionOptions({"partialsType": _PARTIALS[dtype]})
        self._popart.set(popart.MATMUL_PARTIALS, _PARTIALS[dtype])
        return self

    def halfFloatCasting(self, half_float_casting: Any) -> Self:
        """Do nothing but warn; ops mixing half and float follow PyTorch."""
        self.checkIsFrozen("Precision.halfFloatCasting")
        _warn_deprecated("Precision.halfFloatCasting")
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> Self:
        """Do nothing but warn; the running statistics keep the type the model gives them."""
        self.checkIsFrozen("Precision.runningStatisticsAlwaysFloat")
        if not isinstance(value, bool):
            raise OptionError(
                f"Precision.runningStatisticsAlwaysFloat takes a bool, not {value!r}",
                fix="remove the call: it has no effect",
            )
        _warn_deprecated("Precision.runningStatisticsAlwaysFloat")
        return self

    def autocastEnabled(self, value: Any = True) -> Self:
        """Do nothing but warn; use `torch.autocast` in the model."""
        self.checkIsFrozen("Precision.autocastEnabled")
        _warn_deprecated("Precision.autocastEnabled")
        return self

    def autocastPolicy(self, policy: Any = None) -> Self:
        """Do nothing but warn; use `torch.autocast` in the model."""
        self.checkIsFrozen("Precision.autocastPolicy")
        _warn_deprecated("Precision.autocastPolicy")
        return self

    @property
    def floating_point_exceptions(self) -> bool:
        """Whether overflow and invalid results raise."""
        return self._popart.is_on(popart.FLOATING_POINT_EXCEPTIONS)

    @property
    def stochastic_rounding(self) -> bool:
        """Whether half precision results are rounded at random."""
        return self._popart.is_on(popart.STOCHASTIC_ROUNDING)

    @property
    def partials_type(self) -> torch.dtype:
        """The type of partial sums in matrix products."""
        half = self._popart.options.get(popart.MATMUL_PARTIALS) == "half"
        return torch.float16 if half else torch.float32


class _JitOptions(OptionGroup):
    """What is left of the options about tracing with TorchScript."""

    PREFIX = "Jit."

    def traceModel(self, trace_model: bool) -> Self:
        """Do nothing but warn; asking for the removed tracer is an error."""
        self.checkIsFrozen("Jit.traceModel")
        if trace_model:
            raise OptionError(
                "Jit.traceModel(True) asks for a tracer that no longer exists",
                fix="remove the call: models are always captured as they run",
            )
        _warn_deprecated("Jit.traceModel")
        return self
