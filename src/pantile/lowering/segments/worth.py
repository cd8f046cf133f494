"""When Inductor has better code for the whole program: if there would be many calls.

What a call costs is known, 8 µs beside the operator itself; what Inductor would save is not known
without compiling both, so the number of calls decides. Measured in turns on a busy machine, one
thread, shortest steps in µs (`benchmarks/segments.py`):

    model       small   ridge   whitened   fourier   spectral
    calls           3       3          6        24        196
    with calls     52    4766      29219     43709      45654
    Inductor       51    5096      43473     41439      33175
    compile     2.4 s   8.1 s      7.9 s    11.1 s      6.7 s
    Inductor   14.8 s  21.6 s     53.7 s    54.7 s     58.5 s

Up to 24 calls a step is as fast or faster, or 5 % slower (fourier) and pays for that for thousands
of steps by its compilation; with 196 it takes 1.4 times as long. The limit is between, a guess.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from pantile.lowering.kernels.refused import Refused

MOST_CALLS = 50
"""More of them are left to Inductor, with all the rest."""


def check_worth(left: Mapping[fx.Node, str]) -> None:
    """Refuse a program with too many calls."""
    if len(left) > MOST_CALLS:
        raise Refused(f"{next(iter(left.values()))}, and {len(left) - 1} calls more")
