"""Where the cache is and how large it may become, as the environment says.

| variable              | meaning                                                             |
|-----------------------|---------------------------------------------------------------------|
| `PANTILE_CACHE_DIR`   | the folder; else `$XDG_CACHE_HOME/pantile`, else `~/.cache/pantile` |
| `PANTILE_CACHE_LIMIT` | its size limit, such as `500M` or `none`; else 2 GiB                |
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from pantile.errors import OptionError

DEFAULT_LIMIT = 2 << 30

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?)(?:I?B)?", re.I)


def default_folder() -> Path:
    """The folder of the user's own cache."""
    if named := os.environ.get("PANTILE_CACHE_DIR"):
        return Path(named).expanduser().absolute()
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache_home):  # the XDG rules: a relative path is ignored
        return Path(cache_home) / "pantile"
    try:
        return Path.home() / ".cache" / "pantile"
    except RuntimeError:  # a user without a home, as in some containers
        return Path(tempfile.gettempdir()) / f"pantile-{os.geteuid()}"


def size_limit() -> int | None:
    """How many bytes the user's own cache may hold; None is no limit."""
    written = os.environ.get("PANTILE_CACHE_LIMIT", "").strip()
    if not written:
        return DEFAULT_LIMIT
    if written.lower() == "none":
        return None
    size = _SIZE.fullmatch(written)
    if size is None:
        raise OptionError(
            f"environment variable PANTILE_CACHE_LIMIT is {written!r}; "
            "it can be a number of bytes, one with K, M, G or T, or none",
            fix="export PANTILE_CACHE_LIMIT=2G",
        )
    return int(float(size[1]) * _UNITS[size[2].upper()])
