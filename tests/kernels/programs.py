"""Functions of tensors as programs of our own kernels, checked while they run.

    functions  ->  one graph  ->  one C++ file  ->  results, for one thread and for two

The memory of the program is full of NaN before each run, and every kernel must be seen to run.
Many functions become one program, because a compiler takes about a second for each. A function may
be refused (`taken` says which are not): it must never be wrong.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx

from pantile.lowering.kernels.build import build
from pantile.lowering.kernels.decompositions import decompositions
from pantile.lowering.kernels.generate import written
from pantile.lowering.kernels.refused import Refused
from pantile.lowering.kernels.source import sources
from pantile.lowering.load import NativeProgram, NativeRun

Function = Callable[..., Any]
Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A function, its inputs, and a name for messages."""

    name: str
    function: Function
    inputs: tuple[torch.Tensor, ...]

    def call(self, inputs: Tensors) -> tuple[torch.Tensor, ...]:
        """All results."""
        results = self.function(*inputs)
        return (results,) if isinstance(results, torch.Tensor) else tuple(results)


@dataclass(frozen=True)
class Ran:
    """What a program returned, and its inputs after the run."""

    results: tuple[torch.Tensor, ...]
    inputs: tuple[torch.Tensor, ...]


def graph_of(function: Function, inputs: Tensors) -> fx.Graph:
    """The operators of a function, decomposed like those of a step."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True):
        fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) for x in inputs]
        # As captured steps are: writes to inputs come last.
        functional = torch.func.functionalize(function, remove="mutations")
        traced = make_fx(functional, decomposition_table=_table())(*fakes)
    graph: fx.Graph = traced.graph
    return graph


@cache
def _table() -> dict[Any, Callable[..., Any]]:
    return {**decompositions(), torch.ops.aten.copy.default: _copy}


def _copy(target: torch.Tensor, source: torch.Tensor, _: bool = False) -> torch.Tensor:
    """What functional code makes of copy_: the new content."""
    if source.dtype is target.dtype and source.shape == target.shape:
        return source.clone()
    return source.to(target.dtype).expand(target.shape).clone()


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own, with the same strides."""
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return copy.copy_(tensor)


class Compiled:
    """A program that was compiled, to be run any number of times."""

    def __init__(self, graph: fx.Graph) -> None:
        outputs = next(node for node in graph.nodes if node.op == "output").args[0]
        program = NativeProgram(build(sources(written(graph), 2), checked=True), [])
        self._library = program.library
        self._library.pantile_kernels_run.argtypes = [ctypes.c_void_p]
        self._library.pantile_kernels_run.restype = ctypes.c_long
        self._library.pantile_kernels.restype = ctypes.c_long
        self._run = NativeRun(program, len(outputs))
        self._ran = 0

    def run(self, inputs: Tensors, threads: int = 1) -> Ran:
        """Run on copies of the inputs."""
        given = [copied(x) for x in inputs]
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            results = tuple(x.clone() for x in self._run.run(given))
        finally:
            torch.set_num_threads(before)
        self._check_kernels()
        return Ran(results, tuple(given))

    def forgive(self) -> None:
        """After a run that failed: kernels that did not run then are not missed."""
        self._ran = self._library.pantile_kernels_run(self._run._context)

    def _check_kernels(self) -> None:
        ran = self._library.pantile_kernels_run(self._run._context)
        assert ran - self._ran == self._library.pantile_kernels(), "not all kernels ran"
        self._ran = ran


def compiled(function: Function, inputs: Tensors) -> Compiled:
    """One function as a program; Refused if there is no rule for it."""

    def whole(*given: torch.Tensor) -> list[torch.Tensor]:
        results = function(*given)
        return [results] if isinstance(results, torch.Tensor) else list(results)

    return Compiled(graph_of(whole, inputs))


def why_refused(case: Case) -> str | None:
    """The reason; None if there are kernels for the case."""
    try:
        written(graph_of(lambda *given: list(case.call(given)), case.inputs))
    except Refused as error:
        return str(error)
    return None


def taken(cases: Iterable[Case]) -> list[Case]:
    """The cases that there are kernels for."""
    return [case for case in cases if why_refused(case) is None]


def run_together(cases: Sequence[Case], threads: Sequence[int] = (1,)) -> Iterator[Ran]:
    """Many cases as one program; what each of them returns, and makes of its inputs."""
    counts = [len(case.inputs) for case in cases]
    lengths: list[int] = []

    def whole(*given: torch.Tensor) -> list[torch.Tensor]:
        results: list[torch.Tensor] = []
        lengths.clear()
        for case, inputs in zip(cases, _parts(given, counts), strict=True):
            own = case.call(inputs)
            lengths.append(len(own))
            results += own
        return results

    inputs = [x for case in cases for x in case.inputs]
    program = compiled(whole, inputs)
    for number in threads:
        ran = program.run(inputs, number)
        pairs = zip(_parts(ran.results, lengths), _parts(ran.inputs, counts), strict=True)
        yield from (Ran(tuple(results), tuple(after)) for results, after in pairs)


def _parts(values: Tensors, counts: Sequence[int]) -> list[Tensors]:
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]


def exact(case: Case) -> Ran:
    """What the case should return and make of its inputs: torch's answer in float64."""
    given = [_wide(copied(x)) for x in case.inputs]
    return Ran(tuple(x.clone() for x in case.call(given)), tuple(given))


def eager(case: Case) -> Ran:
    """Torch's answer in the case's own types."""
    given = [copied(x) for x in case.inputs]
    return Ran(tuple(x.clone() for x in case.call(given)), tuple(given))


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def check_close(
    ours: torch.Tensor, own: torch.Tensor, best: torch.Tensor, what: str, times: float = 4.0
) -> None:
    """No farther from the best answer than a few times eager's distance, plus rounding."""
    assert ours.shape == own.shape and ours.dtype == own.dtype, what
    if not own.dtype.is_floating_point:
        assert torch.equal(ours, own), what
        return
    ours, own, best = ours.double(), own.double(), best.double()
    odd = ~torch.isfinite(own)
    assert torch.equal(~torch.isfinite(ours), odd), f"{what}: infinite or NaN at other places"
    assert torch.equal(ours[odd].nan_to_num(7.0), own[odd].nan_to_num(7.0)), what
    if odd.all():
        return
    fine = ~odd & torch.isfinite(best)
    allowed = times * (own - best)[fine].abs().max() + 1e-6 * (1e-30 + best[fine].abs().max())
    error = (ours - best)[fine].abs().max()
    assert error <= allowed, f"{what}: error {error:.3g}, allowed {allowed:.3g}"


def check(cases: Sequence[Case], threads: Sequence[int] = (1, 2), times: float = 4.0) -> None:
    """All cases as one program: results, and inputs that were written, against torch."""
    found = list(run_together(cases, threads))
    for number, ran in enumerate(found):
        case = cases[number % len(cases)]
        own, best = eager(case), exact(case)
        pairs = [*zip(ran.results, own.results, best.results, strict=True)]
        pairs += zip(ran.inputs, own.inputs, best.inputs, strict=True)
        for place, (x, y, z) in enumerate(pairs):
            check_close(x, y, z, f"{case.name} [{place}]", times)
    for first, second in zip(found, found[len(cases) :], strict=False):
        for x, y in zip(first.results, second.results, strict=True):
            assert torch.allclose(x, y, 1e-4, 1e-5, equal_nan=True), "threads change the result"
