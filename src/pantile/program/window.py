"""Show the few lines of a text round the one that is wrong.

  11    %mm    = aten.mm.default(%x, %w)         -> float32[2, 4]
> 12    %relu  = aten.relu_.default(%mm)         -> float32[2, 4]
  13    write   %x <- %relu  as %copy_
"""

from __future__ import annotations

from collections.abc import Sequence

_CONTEXT = 4


def show_window(lines: Sequence[str], at: int) -> str:
    """The lines round index `at`, numbered from one, with a mark at that line."""
    first, last = max(0, at - _CONTEXT), min(len(lines), at + _CONTEXT + 1)
    width = len(str(last))
    return "\n".join(
        f"{'>' if index == at else ' '} {index + 1:{width}}  {lines[index]}"
        for index in range(first, last)
    )
