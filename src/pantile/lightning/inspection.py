"""What the strategy tells about its programs: statistics and explanations."""

from __future__ import annotations

from typing import Any

from pantile.lightning.profiler import ProgramTime
from pantile.lightning.programs import Programs, Recording


class Inspection:
    """The part of the strategy that talks."""

    mode: str
    mode_reasons: list[str]
    optimizer_updates: int
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
            engine = ", native" if known.is_native else ""
            shapes = known.outline.described()
            lines.append(f"{known.step} ({known.kind.name}{engine}): {shapes}")
        return "\n".join(lines)

    @property
    def program_times(self) -> list[ProgramTime]:
        """What the calls of each program took."""
        return [] if self._programs is None else self._programs.times()

    def host_call(self, function: Any, *args: Any, **kwargs: Any) -> None:
        """Inside a step: call a function on the host after each run, with the values of the run."""
        tape = None if self._programs is None else self._programs.tape
        if tape is None:
            function(*args, **kwargs)
        else:
            tape.add(function, args, kwargs)

    def statistics(self) -> dict[str, float]:
        """What was run so far."""
        programs = self._recordings
        return {
            "ipu.programs": float(len(programs)),
            "ipu.calls": self._counts["calls"],
            "ipu.step_seconds": self._counts["seconds"],
            "ipu.optimizer_updates": float(self.optimizer_updates),
        }
