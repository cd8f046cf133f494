"""How near products and convolutions come to what the core can do, and where a step's time goes.

    python -m benchmarks peak                       W3 and W4
    python -m benchmarks peak --workloads W5

The programs of the workloads are compiled so that they add up the CPU time of each kernel, and run
on one thread. The limit is a loop of multiply-adds in registers, measured in turns with them. Only
multiplications of data are counted, not those of a convolution's padding.
"""

from __future__ import annotations

import ctypes
import math
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import run
from typing import Any

import torch
from torch import fx

from benchmarks import printed
from benchmarks.workloads import Workload

_RUNS = 6
_NANO = 1e-9
_LOOP = """
extern "C" float multiply_add(long rounds, float x) {
  vec sums[12];
  for (int i = 0; i < 12; i++) sums[i] = spread(x * i);
  const vec a = spread(x), b = spread(1 - x);
  for (long r = 0; r < rounds; r++) UNROLLED for (int i = 0; i < 12; i++) sums[i] = sums[i] * b + a;
  vec all = sums[0];
  for (int i = 1; i < 12; i++) all += sums[i];
  return all[0];
}
extern "C" int lanes() { return LANES; }
"""


@dataclass
class Group:
    """Kernels of one kind."""

    count: int = 0
    seconds: float = 0.0
    operations: float = 0.0


@dataclass
class Profile:
    """The kernels of a step by kind, and the limit measured beside them."""

    peak: float
    groups: dict[str, Group] = field(default_factory=dict)

    def rate(self, word: str) -> float | None:
        """Operations a second of all kernels whose kind begins so."""
        chosen = [group for kind, group in self.groups.items() if kind.startswith(word)]
        seconds = sum(group.seconds for group in chosen)
        return sum(group.operations for group in chosen) / seconds if seconds else None


class Limit:
    """The loop of multiply-adds."""

    def __init__(self) -> None:
        from pantile.lowering.compiler import find_compiler
        from pantile.lowering.kernels.build import flags
        from pantile.lowering.kernels.source import template

        with tempfile.TemporaryDirectory(prefix="pantile-peak-") as folder:
            source, library = Path(folder) / "peak.cpp", Path(folder) / "peak.so"
            source.write_text(template("vector.h") + _LOOP, encoding="utf-8")
            command = [find_compiler(), *flags(), "-shared", str(source), "-o", str(library)]
            run(command, check=True)
            self._library = ctypes.CDLL(str(library))
        self._library.multiply_add.argtypes = [ctypes.c_long, ctypes.c_float]
        self._library.multiply_add.restype = ctypes.c_float
        self.best = 0.0

    def measure(self, rounds: int = 1_000_000) -> None:
        """Operations a second of CPU time; the best counts."""
        begin = time.thread_time()
        self._library.multiply_add(rounds, 1e-3)
        seconds = time.thread_time() - begin
        self.best = max(self.best, 2.0 * 12 * self._library.lanes() * rounds / seconds)


def show(names: Iterable[str]) -> None:
    """Measure workloads and print their tables."""
    torch.set_num_threads(1)
    printed.show("peak", names, measured, table)


def measured(workload: Workload) -> Profile:
    """The profile of a training step."""
    from pantile.lowering.kernels.build import build
    from pantile.lowering.kernels.decompose import decomposed
    from pantile.lowering.kernels.decompositions import decompositions
    from pantile.lowering.kernels.generate import written
    from pantile.lowering.kernels.source import sources
    from pantile.lowering.load import NativeProgram, NativeRun

    prepared, values = _program(workload)
    writer = written(decomposed(prepared.program, decompositions()))
    program = NativeProgram(build(sources(writer, 2), checked=True), [])
    library = program.library
    library.pantile_ticks.restype = ctypes.POINTER(ctypes.c_long)
    runner, limit = NativeRun(program, len(prepared.program.outputs)), Limit()
    count, best = len(writer.functions), [math.inf] * len(writer.functions)
    runner.run(values)
    for _ in range(_RUNS):
        limit.measure()
        before = library.pantile_ticks()[:count]
        runner.run(values)
        after = library.pantile_ticks()[:count]
        best = [min(b, new - old) for b, new, old in zip(best, after, before, strict=True)]
    nodes = {node.name: node for node in writer.plan.nodes}
    return _profile([f.note for f in writer.functions], best, nodes, limit.best)


def _program(workload: Workload) -> tuple[Any, Sequence[torch.Tensor]]:
    """The program of a training step, and values for its inputs."""
    import poptorch
    from pantile.runtime.native.samples import samples_of
    from pantile.runtime.native.step_programs import fused_step

    model = workload.with_loss()
    options = poptorch.Options().engine("native").showCompilationProgressBar(False)
    executor = poptorch.trainingModel(model, options, workload.optimizer(model.parameters()))
    executor.compile(*workload.batch())
    ((compiled, update),) = executor._native._steps
    programs = fused_step(compiled, update)
    values = samples_of(programs, "body", {})
    torch.manual_seed(0)
    for value in values:
        if value.is_floating_point() and value.dim():
            value.normal_(0, 0.02).abs_()
    return programs.body, values


def _profile(
    notes: Sequence[str], ticks: Sequence[float], nodes: dict[str, fx.Node], peak: float
) -> Profile:
    profile = Profile(peak)
    for note, time_taken in zip(notes, ticks, strict=True):
        words = note.split()
        node = nodes.get(words[-1])
        operations = 0.0 if node is None else _operations(node)
        named = words[0] in ("product", "images", "convolution,")
        kind = re.sub(r"[_\d]*$", "", note) if named and node is not None else words[0]
        kind = kind if words[0] != "product" else f"product {words[1]}"
        group = profile.groups.setdefault(kind, Group())
        group.count += 1
        group.seconds += time_taken * _NANO
        group.operations += operations if named else 0
    return profile


def _operations(node: fx.Node) -> float:
    """Multiplications and additions of data that a product or convolution needs."""
    name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
    shapes = [tuple(n.meta["val"].shape) for n in node.args if isinstance(n, fx.Node)]
    out = tuple(node.meta["val"].shape) if "val" in node.meta else ()
    arguments: Any = node.args
    if name in ("mm", "bmm"):
        return 2.0 * math.prod(out) * shapes[0][-1]
    if name in ("addmm", "baddbmm"):
        return 2.0 * math.prod(out) * shapes[1][-1]
    if name == "convolution":
        return _of_convolution(shapes[0], shapes[1], out, arguments[3:6])
    if name == "conv_input":
        return _of_convolution(out, shapes[1], shapes[0], arguments[2][:3])
    if name == "conv_weight":
        return _of_convolution(shapes[1], out, shapes[0], arguments[2][:3])
    return 0.0


def _of_convolution(
    image: Sequence[int], weight: Sequence[int], out: Sequence[int], geometry: Any
) -> float:
    """Of images, weight and results of these shapes, without the padding."""
    taps = 1.0
    for dim in range(2, len(image)):
        stride, padding, dilation = (tuple(part)[dim - 2] for part in geometry)
        places = range(-padding, out[dim] * stride - padding, stride)
        within = [p + k * dilation for p in places for k in range(weight[dim])]
        taps *= sum(0 <= place < image[dim] for place in within)
    return 2.0 * image[0] * weight[0] * weight[1] * taps


def table(name: str, profile: Profile) -> str:
    """As text."""
    whole = sum(group.seconds for group in profile.groups.values())
    lines = [f"{name}: {whole * 1e3:.1f} ms of CPU time in kernels; limit {profile.peak:.3g} op/s"]
    for kind, group in sorted(profile.groups.items(), key=lambda item: -item[1].seconds):
        share, rate = group.seconds / whole, group.operations / max(group.seconds, 1e-12)
        near = f"{rate / 1e9:7.1f} Gop/s {rate / profile.peak:6.1%}" if rate else ""
        lines.append(f"{group.seconds * 1e3:9.2f} ms {share:6.1%} {group.count:4} {kind:34} {near}")
    return "\n".join(lines)


if __name__ == "__main__":
    show(sys.argv[1:] or ("W3", "W4"))
