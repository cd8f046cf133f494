"""The options of a model in the log, one line each, at level DEBUG.

poptorch.Options set device_iterations to value 4
poptorch.Options set convolutionOptions[partialsType] to half
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pantile.logging import logger, repeat_limit

if TYPE_CHECKING:
    from pantile.options.options import Options


def log_options(options: Options) -> None:
    """Say what every option is; from here on lines repeat as often as the options allow."""
    repeat_limit.limit = options.max_repeat_logs
    if logger.isEnabledFor(logging.DEBUG):
        log_values(options.toDict())
    if options.exists("use_model"):
        state = "Enabled" if options.use_model else "Disabled"
        logger.info("From the user configuration: Ipu model: %s", state)


def log_values(values: Mapping[str, Any]) -> None:
    """Say what every value of `Options.toDict()` is."""
    for name, value in values.items():
        for line in _lines(name, value):
            logger.debug("poptorch.Options %s", line)


def _lines(name: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"set {name}[{key}] to {_text(item)}" for key, item in value.items()]
    if isinstance(value, (list, tuple, set)):
        return [f"added {_text(item)} to {name}" for item in value]
    return [f"set {name} to value {_text(value)}"]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
