"""Is a compiled program right? One run beside the reference engine, before it is ever used.

    native(values)   ~   reference(values)       as near as reference(values, last bits moved) is

This is no measure of accuracy: it finds code that computes something else, as a mistake of ours or
of a compiler would make it. Rounding can be all there is of a result (a gradient that is zero on
paper), so what a nudge of the values changes is allowed to differ, too. The run that is looked at
is the first of those that time the program; the reference engine ran while it was compiled. Both
write to their values, so a second look, with nudged ones, starts from new samples: to keep them
would take memory in every compilation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from pantile.errors import Error
from pantile.lowering.expectation import Expectation, copied, results_of
from pantile.lowering.load import NativeRun
from pantile.lowering.prepare import Prepared
from pantile.lowering.torch_threads import torch_threads
from pantile.lowering.tune import Samples

MOST_BYTES = 1 << 28
"""Programs with more state than this are not checked: two copies of it are made."""

MOST_SECONDS = 1.0
"""Programs that take longer are not run again by the reference engine."""

_NUDGE = 2.0**-21
"""Four units in the last place of float32; in a program with narrower types it is one of theirs."""
_SHARE, _NUDGED, _FLOOR = 0.05, 30.0, 1e-6
"""What may differ: this part of the norm, so many times what the nudge does, and so much each."""


@dataclass(frozen=True)
class Examined:
    """What a first run showed."""

    complaint: str | None
    """What is wrong with the code; None if nothing is, or it cannot be told."""
    seconds: float | None
    """How long the run took; None if it failed."""


def expectation(prepared: Prepared, values: Sequence[torch.Tensor]) -> Expectation | None:
    """What a run on these values should make, from now on computed; None if it is not checked."""
    if sum(value.nbytes for value in values) > MOST_BYTES:
        return None
    return Expectation(prepared, values).start()


def examined(
    run: NativeRun,
    prepared: Prepared,
    values: Sequence[torch.Tensor],
    threads: int,
    expected: Expectation | None,
    samples: Samples,
) -> Examined:
    """Run a program once on these values, which it may write to, and look at what it makes.

    `samples` makes such values again.
    """
    try:
        results, seconds = _first_run(run, prepared, values, threads)
    except (Error, RuntimeError, IndexError, ValueError) as error:
        right = None if expected is None else expected.results()
        failed = None if right is None else f"it fails where the reference engine does not: {error}"
        return Examined(failed, None)
    if expected is None or seconds > MOST_SECONDS:
        return Examined(None, seconds)
    right = expected.results()
    if right is None or _are_near([*results, *values], right):
        return Examined(None, seconds)
    return Examined(_second_look(run, prepared, threads, samples()), seconds)


def _are_near(given: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    with torch_threads(1):
        return all(
            _is_near(ours, wanted, wanted) for ours, wanted in zip(given, right, strict=True)
        )


def _second_look(
    run: NativeRun, prepared: Prepared, threads: int, values: Sequence[torch.Tensor]
) -> str | None:
    """What is wrong with the results and the inputs after a run, with regard to rounding."""
    nudge = _nudge(prepared)
    nudged = results_of(prepared, [_nudged(value, nudge) for value in values])
    right = results_of(prepared, [copied(value) for value in values])
    if right is None:
        return None
    try:
        results, _ = _first_run(run, prepared, values, threads)
    except (Error, RuntimeError, IndexError, ValueError) as error:
        return f"it fails where the reference engine does not: {error}"
    rows = zip(_names(prepared), [*results, *values], right, nudged or right, strict=True)
    for name, ours, wanted, other in rows:
        if not _is_near(ours, wanted, other):
            return f"{name} is not what the reference engine computes"
    return None


def _first_run(
    run: NativeRun, prepared: Prepared, values: Sequence[torch.Tensor], threads: int
) -> tuple[Sequence[torch.Tensor], float]:
    """The run whose results are looked at: the second one of a program that keeps something."""
    with torch_threads(threads):
        begin = time.perf_counter()
        results = run.run(values)
        seconds = time.perf_counter() - begin
        return run.run_again(values) if prepared.keeps else results, seconds


def _names(prepared: Prepared) -> Iterator[str]:
    program = prepared.program
    yield from (f"output {entry.name!r}" for entry in program.outputs)
    yield from (f"{entry.kind.value} {entry.name!r}" for entry in program.inputs)


def _nudge(prepared: Prepared) -> float:
    """By what part numbers are moved, so that a rounding of the program goes another way."""
    found = (node.meta.get("val") for node in prepared.program.graph.nodes)
    types = {value.dtype for value in found if isinstance(value, torch.Tensor)}
    narrow = [torch.finfo(dtype).eps for dtype in types & {torch.bfloat16, torch.float16}]
    return max(narrow, default=_NUDGE)


def _nudged(value: torch.Tensor, nudge: float) -> torch.Tensor:
    """A copy, each number a little greater or smaller."""
    if not value.is_floating_point():
        return copied(value)
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, value.shape, generator=generator, dtype=torch.int8)
    nudged = value * (1 + (2.0 * signs - 1) * nudge).to(value.dtype)
    return nudged if nudged.stride() == value.stride() else copied(value)


def _is_near(ours: torch.Tensor, right: torch.Tensor, nudged: torch.Tensor) -> bool:
    if not right.is_floating_point():
        # A choice between equals, such as argmax, may go either way.
        changed, by_nudge = int((ours != right).sum()), int((nudged != right).sum())
        return changed <= max(1, right.numel() // 20, by_nudge)
    floor = _FLOOR * right.numel() ** 0.5
    if nudged is right:
        apart, size = _norm(ours.float() - right.float()), _norm(right)
        if math.isfinite(apart) and math.isfinite(size):  # 20 times as fast as to look at each
            return bool(apart <= _SHARE * size + floor)
    ours, right, nudged = ours.double(), right.double(), nudged.double()
    known = right.isfinite() & nudged.isfinite()
    ours, right, nudged = ours[known], right[known], nudged[known]
    allowed = _SHARE * right.norm() + _NUDGED * (nudged - right).norm()
    return bool((ours - right).norm() <= allowed + floor)


def _norm(value: torch.Tensor) -> float:
    """Of all numbers, added up as doubles."""
    return float(torch.linalg.vector_norm(value, dtype=torch.float64))
