"""Reports of compiled programs: `enableProfiling(dir)` and the variables old run scripts set.

    <dir>/training/report.json      everything a page shows (docs/report-data.md)
    <dir>/training/trace.json       the modelled timeline, for Perfetto
    <dir>/training/report.html      the page, which needs neither of them nor a network
    <dir>/inference/…

`POPLAR_ENGINE_OPTIONS` comes before `Options.enableProfiling`, as it did with PopTorch.
"""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pantile.errors import OptionError
from pantile.logging import logger
from pantile.options import Options

if TYPE_CHECKING:
    from pantile.runtime.compiled import Compiled
    from pantile.runtime.executor import PoplarExecutor

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
    """Write the report of one program; returns the folder it is in."""
    # Only who asks for a report pays for the model of the machine.
    from pantile.machine.report import document
    from pantile.machine.trace import trace
    from pantile.report_page import page
    from pantile.runtime.estimate import estimate_of
    from pantile.store.atomic_file import write_atomically

    estimate = estimate_of(executor, program)
    # A front-end's step that computes gradients and leaves the update to the host trains, too.
    trains = executor._training or any(op.phase == "backward" for op in estimate.record.ops)
    kind = "training" if trains else "inference"
    folder = directory / kind
    host = _host(executor)
    options = executor._options
    name = options.model_name if options.exists("model_name") else _class_name(executor)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    report = document(estimate, name=name, kind=kind, created=created, host=host)
    folder.mkdir(parents=True, exist_ok=True)
    for file, data in (("report.json", report), ("trace.json", trace(estimate, host))):
        write_atomically(folder / file, [json.dumps(data).encode()])
    write_atomically(folder / "report.html", [page(report).encode()])
    logger.info("The report is in %s: open it with `pantile report %s`.", folder, directory)
    return folder


def _class_name(executor: PoplarExecutor) -> str:
    return type(executor._user_model).__name__


def _host(executor: PoplarExecutor) -> dict[str, Any]:
    """What was measured on this machine."""
    elapsed = executor._compiler.progress.elapsed
    seconds = elapsed.total_seconds() if elapsed is not None else 0.0
    return {
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "compile_seconds": seconds,
        "spans": [{"name": "compile", "start": 0.0, "seconds": seconds}],
    }
