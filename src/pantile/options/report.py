"""The options of a model in the log, one line each, at level DEBUG.

poptorch.Options set device_iterations to value 4
poptorch.Options set convolutionOptions[partialsType] to half
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pantile.options.options import Options

_logger = logging.getLogger("poptorch::python")


def log_options(options: Options) -> None:
    """Say what every option is."""
    if not _logger.isEnabledFor(logging.DEBUG):
        return
    for name, value in {**options.toDict(), **options._Popart.options}.items():
        for line in _lines(name, value):
            _logger.debug("poptorch.Options %s", line)


def _lines(name: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"set {name}[{key}] to {_text(item)}" for key, item in value.items()]
    if isinstance(value, (list, tuple, set)):
        return [f"added {_text(item)} to {name}" for item in value]
    return [f"set {name} to value {_text(value)}"]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
