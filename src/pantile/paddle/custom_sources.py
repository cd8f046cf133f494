"""Custom operators of IPU scripts have two C++ halves: one for Paddle, one for PopART.

The Paddle half (`PD_BUILD_OP`: shapes, types, a CPU kernel) compiles with the stock wheel. The
PopART half needs headers nobody has; what it computed is given as a torch function with
`pantile.paddle.register_operator`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_POPART = re.compile(r'^\s*#\s*include\s*[<"](popart|poplar|popops|poplin|popnn)\b', re.M)


_LIBRARY = re.compile(r"^-l(pop\w+|gcl|gp|poplar)$")


def without_graphcore_libraries(flags: Iterable[str]) -> list[str]:
    """Linker flags without the libraries that only the PopART half needs."""
    return [flag for flag in flags if _LIBRARY.match(flag) is None]


def without_popart(sources: Iterable[str]) -> list[str]:
    """The source files that need no header of Graphcore's."""
    return [source for source in sources if not _needs_popart(Path(source))]


def _needs_popart(source: Path) -> bool:
    return source.is_file() and _POPART.search(source.read_text(errors="replace")) is not None
