"""Is a compiled program right? One run beside the reference engine, before it is ever used.

    native(values)   ~   reference(values)       as near as reference(values, last bits moved) is

This is no measure of accuracy: it finds code that computes something else, as a mistake of ours or
of a compiler would make it. Rounding can be all there is of a result (a gradient that is zero on
paper), so what a nudge of the values changes is allowed to differ, too. Runs on copies; programs
that take long are not run twice more for this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from pantile.errors import Error
from pantile.logging import logger
from pantile.lowering.load import NativeProgram, NativeRun
from pantile.lowering.prepare import Prepared
from pantile.lowering.reference import ReferenceExecutable

MOST_BYTES = 1 << 28
"""Programs with more state than this are not checked: three copies of it are made."""

_NUDGE = 2.0**-21
"""Four units in the last place of float32; in a program with narrower types it is one of theirs."""
_SHARE, _NUDGED, _FLOOR = 0.05, 30.0, 1e-6
"""What may differ: this part of the norm, so many times what the nudge does, and so much each."""


def complaint(
    code: bytes, prepared: Prepared, values: Sequence[torch.Tensor], threads: int
) -> str | None:
    """What is wrong with the code of a program; None if nothing is, or it cannot be told."""
    if sum(value.nbytes for value in values) > MOST_BYTES:
        return None
    reference = ReferenceExecutable(prepared.program)
    try:
        right = _tensors(reference.run, values)
    except (Error, RuntimeError, IndexError, ValueError) as error:
        # Labels out of range, for example: the run itself will say so, with the user's line.
        logger.debug("the program fails on the samples, it was not checked: %s", error)
        return None
    program = NativeProgram(code, ())
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        given = _tensors(_checked_run(program, prepared), values)
    except Error as error:
        return f"it fails where the reference engine does not: {error}"
    finally:
        torch.set_num_threads(before)
    pairs = list(zip(given, right, strict=True))
    if all(_is_near(ours, expected, expected) for ours, expected in pairs):
        return None
    # Seldom: only then it is worth to know what rounding does.
    nudge = _nudge(prepared)
    nudged = _tensors(reference.run, [_nudged(value, nudge) for value in values])
    for name, (ours, expected), other in zip(_names(prepared), pairs, nudged, strict=True):
        if not _is_near(ours, expected, other):
            return f"{name} is not what the reference engine computes"
    return None


def _names(prepared: Prepared) -> Iterator[str]:
    program = prepared.program
    yield from (f"output {entry.name!r}" for entry in program.outputs)
    yield from (f"{entry.kind.value} {entry.name!r}" for entry in program.inputs)


_Run = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def _checked_run(program: NativeProgram, prepared: Prepared) -> _Run:
    """The run whose results are looked at: the second one of a program that keeps something."""
    native = NativeRun(program, len(prepared.program.outputs))
    if not prepared.keeps:
        return native.run

    def twice(values: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        native.run(values)
        return native.run_again(values)

    return twice


def _tensors(run: _Run, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a run, and the inputs after it."""
    copies = [_copied(value) for value in values]
    return [tensor.clone() for tensor in (*run(copies), *copies)]


def _copied(value: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides. What lies in several places at once is never written to."""
    copy = value.clone()
    return copy if copy.stride() == value.stride() else value


def _nudge(prepared: Prepared) -> float:
    """By what part numbers are moved, so that a rounding of the program goes another way."""
    found = (node.meta.get("val") for node in prepared.program.graph.nodes)
    types = {value.dtype for value in found if isinstance(value, torch.Tensor)}
    narrow = [torch.finfo(dtype).eps for dtype in types & {torch.bfloat16, torch.float16}]
    return max(narrow, default=_NUDGE)


def _nudged(value: torch.Tensor, nudge: float) -> torch.Tensor:
    """Each number a little greater or smaller."""
    if not value.is_floating_point():
        return value
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, value.shape, generator=generator, dtype=torch.int8)
    nudged = value * (1 + (2.0 * signs - 1) * nudge).to(value.dtype)
    return nudged if nudged.stride() == value.stride() else value


def _is_near(ours: torch.Tensor, right: torch.Tensor, nudged: torch.Tensor) -> bool:
    if not right.is_floating_point():
        # A choice between equals, such as argmax, may go either way.
        changed, by_nudge = int((ours != right).sum()), int((nudged != right).sum())
        return changed <= max(1, right.numel() // 20, by_nudge)
    ours, right, nudged = ours.double(), right.double(), nudged.double()
    known = right.isfinite() & nudged.isfinite()
    ours, right, nudged = ours[known], right[known], nudged[known]
    allowed = _SHARE * right.norm() + _NUDGED * (nudged - right).norm()
    return bool((ours - right).norm() <= allowed + _FLOOR * right.numel() ** 0.5)
