"""What the strategy tells about its programs: statistics, explanations, reports."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from pantile.lightning.programs import Programs, Recording
from pantile.store.atomic_file import write_atomically

_REPORTS = "ipu_reports"


class Inspection:
    """The part of the strategy that talks."""

    mode: str
    mode_reasons: list[str]
    optimizer_updates: int
    autoreport_dir: str | None
    _programs: Programs | None
    _counts: dict[str, float]

    @property
    def _recordings(self) -> list[Recording]:
        return [] if self._programs is None else self._programs.recordings

    def explain(self) -> str:
        """Why steps are split or fused, and which programs there are."""
        why = f" because of {', '.join(self.mode_reasons)}" if self.mode_reasons else ""
        lines = [f"{self.mode} steps{why}"]
        for known in reversed(self._recordings):
            shapes = ", ".join(f"{d}{list(s)}" for s, d in known.outline.kinds)
            lines.append(f"{known.step} ({known.kind.name}): {shapes}".replace("torch.", ""))
        return "\n".join(lines)

    def host_call(self, function: Any, *args: Any, **kwargs: Any) -> None:
        """Inside a step: call a function on the host after each run, with the values of the run."""
        tape = None if self._programs is None else self._programs.tape
        if tape is None:
            function(*args, **kwargs)
        else:
            tape.add(function, args, kwargs)

    def write_report(self) -> Path:
        """Write what is known of every program as JSON; the folder is `autoreport_dir`."""
        folder = Path(self.autoreport_dir or _REPORTS)
        folder.mkdir(parents=True, exist_ok=True)
        report = {
            "mode": self.mode,
            "reasons": self.mode_reasons,
            "statistics": self.statistics(),
            "programs": [_described(known) for known in reversed(self._recordings)],
        }
        path = folder / "report.json"
        write_atomically(path, [json.dumps(report, indent=1).encode()])
        return path

    def statistics(self) -> dict[str, float]:
        """What was run so far."""
        programs = self._recordings
        return {
            "ipu.programs": float(len(programs)),
            "ipu.calls": self._counts["calls"],
            "ipu.step_seconds": self._counts["seconds"],
            "ipu.optimizer_updates": float(self.optimizer_updates),
        }


def _described(known: Recording) -> dict[str, Any]:
    """One program: what it takes, which operators it consists of, how it is run."""
    assert known.program is not None
    executor = known.program.executor
    found: dict[str, Any] = {"step": known.step, "kind": known.kind.name, "parts": known.kind.parts}
    found["inputs"] = [[str(dtype), list(shape)] for shape, dtype in known.outline.kinds]
    found["native"] = executor.nativeDecisions()
    for compiled in executor._compiled:
        nodes = [n for n in compiled.program.graph.nodes if n.op == "call_function"]
        counted = Counter(str(node.target) for node in nodes)
        found["operators"] = dict(counted.most_common())
        found["stages"] = len(compiled.captured.blocks) or 1
    tensors = [p for p in known.attributes_of_model() if isinstance(p, torch.Tensor)]
    found["parameter_bytes"] = sum(t.numel() * t.element_size() for t in tensors)
    return found
