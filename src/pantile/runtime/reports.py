"""Reports of compiled programs: `enableProfiling(dir)` and the variables old run scripts set.

    <dir>/training/report.json      everything a page shows (docs/report-data.md)
    <dir>/training/trace.json       the modelled timeline, for Perfetto
    <dir>/training/report.html      the page, which needs neither of them nor a network
    <dir>/training/profile.pop      a link to report.json, where scripts look for the SDK's profile
    <dir>/inference/…               or <dir>/<name>/… after `Options.modelName(name)`

`POPLAR_ENGINE_OPTIONS` comes before `Options.enableProfiling`, as it did with PopTorch.
"""

from __future__ import annotations

import json
import os
import platform
import weakref
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pantile.errors import OptionError
from pantile.logging import logger
from pantile.options import Options

if TYPE_CHECKING:
    from pantile.machine.estimate import Estimate
    from pantile.runtime.compiled import Compiled
    from pantile.runtime.executor import PoplarExecutor
    from pantile.runtime.host_timeline import HostTimeline
    from pantile.runtime.progress import CompileProgress

_ENGINE_VARIABLE = "POPLAR_ENGINE_OPTIONS"
_HOST_VARIABLE = "PVTI_OPTIONS"


def report_directory(options: Options) -> Path | None:
    """Where reports go, or None when nobody asked for them."""
    engine = _settings(_ENGINE_VARIABLE)
    if any(name.startswith("autoReport.") and _is_on(value) for name, value in engine.items()):
        return Path(str(engine.get("autoReport.directory", ".")))
    traced = _settings(_HOST_VARIABLE)
    if _is_on(traced.get("enable", "")):
        return Path(str(traced.get("directory", ".")))
    chosen = options.profile_dir
    return None if chosen is None else Path(chosen)


def _is_on(value: Any) -> bool:
    return str(value).lower() in ("true", "1")


def _settings(variable: str) -> dict[str, Any]:
    text = os.environ.get(variable)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionError(
            f"environment variable {variable} is not JSON: {error}",
            fix=f"""export {variable}='{{"autoReport.all": "true"}}'""",
        ) from None
    if not isinstance(found, dict):
        raise OptionError(
            f"environment variable {variable} is a JSON {type(found).__name__}, not an object",
            fix=f"""export {variable}='{{"autoReport.all": "true"}}'""",
        )
    return found


def write_report(executor: PoplarExecutor, program: Compiled, directory: Path) -> Path:
    """Write the report of one program; returns the folder it is in.

    It is written again, with the calls measured until then, when the executor lets go of the device
    or the process ends.
    """
    # Only who asks for a report pays for the model of the machine.
    from pantile.runtime.estimate import estimate_of

    estimate = estimate_of(executor, program)
    # A front-end's step that computes gradients and leaves the update to the host trains, too.
    trains = executor._training or any(op.phase == "backward" for op in estimate.record.ops)
    kind = "training" if trains else "inference"
    options = executor._options
    chosen = options.model_name if options.exists("model_name") else None
    name, folder = chosen or _class_name(executor), directory / (chosen or kind)
    report = _Report(folder, estimate, name, kind, executor._compiler.progress)
    report.write()
    if executor._timeline.publish is None:
        weakref.finalize(executor, _publish, executor._timeline)
    executor._timeline.publish = report.write_again
    logger.info("The report is in %s: open it with `pantile report %s`.", report.folder, directory)
    return report.folder


class _Report:
    """The files of one report, and what is needed to write them again."""

    def __init__(
        self, folder: Path, estimate: Estimate, name: str, kind: str, progress: CompileProgress
    ) -> None:
        from pantile.machine.report import document

        self.folder = folder
        self._estimate, self._progress = estimate, progress
        created = datetime.now(UTC).isoformat(timespec="seconds")
        self._data = document(estimate, name=name, kind=kind, created=created, host={})
        self._written = 0

    def write(self) -> None:
        from pantile.machine.trace import trace
        from pantile.report_page import page
        from pantile.store.atomic_file import write_atomically

        host = _host(self._progress)
        data = {**self._data, "host": host}
        self.folder.mkdir(parents=True, exist_ok=True)
        for file, content in (("report.json", data), ("trace.json", trace(self._estimate, host))):
            write_atomically(self.folder / file, [json.dumps(content).encode()])
        write_atomically(self.folder / "report.html", [page(data).encode()])
        old_name = self.folder / "profile.pop"
        if not os.path.lexists(old_name):  # one that an SDK wrote stays
            old_name.symlink_to("report.json")
        self._written = self._age()

    def write_again(self) -> None:
        """Write it with what was measured since, unless a later program has taken its place."""
        if self._age() == self._written:
            self.write()

    def _age(self) -> int:
        try:
            return (self.folder / "report.json").stat().st_mtime_ns
        except OSError:
            return -1


def _publish(timeline: HostTimeline) -> None:
    if timeline.publish is not None:
        timeline.publish()


def _class_name(executor: PoplarExecutor) -> str:
    return type(executor._user_model).__name__


def _host(progress: CompileProgress) -> dict[str, Any]:
    """What was measured on this machine."""
    seconds = progress.elapsed.total_seconds() if progress.elapsed is not None else 0.0
    return {
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "compile_seconds": seconds,
        "programs": progress.timeline.programs(),
        "spans": progress.timeline.spans(),
    }
