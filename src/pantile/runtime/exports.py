"""What an executor does with files: `save`, `compileAndExport`, `loadExecutable`.

compiled executor ──save──► file ──load──► an executor that goes on where the first one was
                               └──loadExecutable──► programs for a model that is wrapped already
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from pantile.errors import StateError
from pantile.options import Options
from pantile.program.tracing import TRACER_LOCK
from pantile.runtime import instrument
from pantile.runtime.export.calls import Call, calls_data, calls_from
from pantile.runtime.export.encode import Writer
from pantile.runtime.export.file import (
    path_to_read,
    path_to_write,
    read_export,
    restoring,
    write_export,
)
from pantile.runtime.export.modules import plain_class
from pantile.runtime.export.options import options_data
from pantile.runtime.export.paths import Paths

if TYPE_CHECKING:
    from pantile.runtime.executor import PoplarExecutor


class Exports:
    """The part of `PoplarExecutor` that writes and reads files."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled it is a model with options: it compiles again where it is loaded."""
        executor = cast("PoplarExecutor", self)
        optimizer = executor._control.optimizer if executor._control is not None else None
        options = executor._options.clone()
        return type(executor)._unpickled, (
            executor.model,
            options,
            executor._training,
            optimizer,
        )

    @classmethod
    def _unpickled(
        cls, model: nn.Module, options: Options, training: bool, optimizer: Any
    ) -> PoplarExecutor:
        made = cast("type[PoplarExecutor]", cls)
        return made(model, options, training=training, optimizer=optimizer)

    def save(
        self,
        filename: str | os.PathLike[str],
        export_model: bool = True,
        save_rng_state: bool = True,
    ) -> None:
        """Write the compiled model to a file that `poptorch.load` reads.

        Without the model the file is for `loadExecutable`. A folder gets a file `model.poptorch`.
        """
        executor = cast("PoplarExecutor", self)
        executor._need_compiled()
        path = path_to_write(filename)
        with executor._lock:
            executor._bring_back()
            executor._pull_from_others()
            # Until the memory of the tensors is copied nobody may train or capture.
            model = executor._user_model
            with TRACER_LOCK, instrument.suspended(model), instrument.uninstrumented(model):
                _write(executor, path, export_model=export_model, rng=save_rng_state)

    def compileAndExport(
        self,
        filename: str | os.PathLike[str],
        *args: Any,
        export_model: bool = True,
        **kwargs: Any,
    ) -> None:
        """Compile for these arguments and write the result to a file, without running."""
        executor = cast("PoplarExecutor", self)
        path = path_to_write(filename)
        executor.compile(*args, **kwargs)
        executor.save(path, export_model=export_model)

    def loadExecutable(self, filename: str | os.PathLike[str]) -> None:
        """Take over compiled programs from a file: the model is captured again, not compiled."""
        executor = cast("PoplarExecutor", self)
        path = path_to_read(filename)
        file = read_export(path)
        trained = bool(file.header.get("training"))
        if trained != executor._training:
            there, wrapper = (
                ("a training", "training") if trained else ("an inference", "inference")
            )
            raise StateError(
                f"{path} was exported from {there} model, which this one is not",
                fix=f"wrap the model with poptorch.{wrapper}Model to load it",
            )
        classes = [plain_class(module) for module in executor._user_model.modules()]
        (data,) = file.restore("calls", paths=Paths(classes))
        with restoring(path):
            calls = calls_from(data)
        executor._offer_entries(file.entries)
        compile_calls(executor, calls)


def compile_calls(
    executor: PoplarExecutor, calls: Sequence[Call], *, with_flags: bool = False
) -> None:
    """Compile an executor for calls of a file, in the train/eval mode it has or had then."""
    for call in calls:
        if with_flags:
            executor._flags = call.flags
            executor._routes.clear()
        with call.modes():
            executor.compile(*call.args, **call.kwargs)
            if with_flags and call.ran and executor._native is not None:
                # Its first iteration was run before it was saved.
                executor._native.note_run(executor._prepared(call.args, dict(call.kwargs))[0])


def _write(executor: PoplarExecutor, path: Path, *, export_model: bool, rng: bool) -> None:
    writer = Writer()
    calls = calls_data(executor._compiled, writer, executor._has_run)
    values: dict[str, Any] = {
        "options": options_data(executor._options),
        "groups": dict(executor._groups.chosen),
        "flags": executor._flags,
        "rng": executor.rng_state if rng else None,
    }
    if export_model:
        values |= _model_values(executor)
    parts = {name: writer.value(value, name) for name, value in values.items()}
    parts["calls"] = writer.value(calls, "calls", way_out="pass plain values and tensors")
    trusted = () if export_model else map(plain_class, executor._user_model.modules())
    writer.check(*trusted)
    about = {
        "training": executor._training,
        "has_model": export_model,
        "model": type(executor._model).__qualname__,
    }
    write_export(path, about, writer, parts, executor._executable_entries())


def _model_values(executor: PoplarExecutor) -> dict[str, Any]:
    """The model with its weights, its optimizer, and what of their state only the device has."""
    weights, update, control = executor._weights, executor._update, executor._control
    assert weights is not None
    values: dict[str, Any] = {"model": executor.model, "replicas": weights._copies}
    if control is not None:
        values["optimizer"] = control.optimizer
        if update is not None and update.scale is not None:
            values["loss_scale"] = update.scale.numbers
        if update is not None and update.bound is not control.optimizer:
            values["device_optimizer"] = {
                "state": update.bound.state,
                "param_groups": update.bound.param_groups,
            }
    return values
