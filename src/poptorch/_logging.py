"""Log levels by the private names that scripts use."""

from pantile.logging import logger, set_backend_log_level, setLogLevel

setPopartLogLevel = set_backend_log_level

__all__ = ["logger", "setLogLevel", "setPopartLogLevel"]
