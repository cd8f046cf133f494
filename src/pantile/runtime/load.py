"""`load`: an executor from a file, going on where the saved one was."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pantile.errors import InputMismatch, OptionTypeError, StateError, StoreError, combined
from pantile.logging import logger
from pantile.optim import Optimizer
from pantile.options import Options
from pantile.runtime.executor import PoplarExecutor
from pantile.runtime.export.calls import calls_from
from pantile.runtime.export.file import ExportFile, path_to_read, read_export, restoring
from pantile.runtime.export.options import make_online, options_from
from pantile.runtime.export.paths import Paths
from pantile.runtime.exports import compile_calls
from pantile.runtime.wrap import inferenceModel, trainingModel

_PARTS = (
    "options",
    "model",
    "optimizer",
    "calls",
    "groups",
    "flags",
    "rng",
    "replicas",
    "device_optimizer",
    "loss_scale",
)


def load(
    filename: str | os.PathLike[str], edit_opts_fn: Callable[[Options], Any] | None = None
) -> PoplarExecutor:
    """The executor of a file that `save` or `compileAndExport` wrote.

    It has the model, options, optimizer and random state of the saved one and is compiled.
    `edit_opts_fn(options)` may change the options first.
    """
    path = path_to_read(filename)
    if edit_opts_fn is not None and not callable(edit_opts_fn):
        raise OptionTypeError(
            f"edit_opts_fn is a {type(edit_opts_fn).__name__}, not a function of the options",
            fix="pass a function such as lambda options: options.deviceIterations(1)",
        )
    with torch.inference_mode(False):
        try:
            file, parts = _restored(path)
        except StoreError as error:
            why = error.message.removeprefix(f"{path}: ").removeprefix(f"{path} ")
            message = f"Invalid file {path}: {why}"
            raise combined(type(error), AssertionError)(message, fix=error.fix) from error
        options = parts["options"]
        seed = _seed(options)
        make_online(options)
        if edit_opts_fn is not None:
            edit_opts_fn(options)
        executor = _wrapped(parts, options, training=bool(file.header.get("training")))
        executor._offer_entries(file.entries)
        _compile(executor, parts, path, edited=edit_opts_fn is not None)
        if parts["rng"] is not None and seed == _seed(options):
            _set_random_state(executor, parts["rng"])
        return executor


def _restored(path: Path) -> tuple[ExportFile, dict[str, Any]]:
    file = read_export(path)
    if not file.header.get("has_model"):
        raise StoreError(
            "it was saved with export_model=False and holds no model",
            fix="wrap the model with poptorch.trainingModel or inferenceModel and call "
            "loadExecutable() on it",
        )
    values = file.restore(*_PARTS, paths=Paths(), whole_model=True)
    parts = dict(zip(_PARTS, values, strict=True))
    with restoring(path):
        parts["options"] = options_from(parts["options"])
        parts["calls"] = calls_from(parts["calls"])
        if not isinstance(parts["model"], nn.Module):
            raise TypeError(f"the model is a {type(parts['model']).__name__}")
    return file, parts


def _wrapped(parts: Mapping[str, Any], options: Options, *, training: bool) -> PoplarExecutor:
    model = parts["model"]
    if training:
        optimizer = parts["optimizer"]
        if options.is_strict and isinstance(optimizer, Optimizer):
            optimizer.upload_again()
        executor = trainingModel(model, options, optimizer)
    else:
        executor = inferenceModel(model, options)
    executor._groups.chosen.update(parts["groups"])
    return executor


def _compile(
    executor: PoplarExecutor, parts: Mapping[str, Any], path: Path, *, edited: bool
) -> None:
    """Compile for the calls of the file, and put back what only the device had."""
    try:
        compile_calls(executor, parts["calls"], with_flags=True)
    except InputMismatch as error:
        if not edited:
            raise
        logger.warning(
            "%s: the arguments it was compiled for do not fit the edited options (%s). The model "
            "is compiled when it is first called.",
            path,
            error.message,
        )
    if executor.isCompiled():
        executor._flags = parts["flags"]
        executor._routes.clear()
        _restore_device(executor, parts)


def _restore_device(executor: PoplarExecutor, parts: Mapping[str, Any]) -> None:
    weights, update = executor._weights, executor._update
    if weights is not None and len(weights._copies) == len(parts["replicas"]):
        for copies, saved in zip(weights._copies, parts["replicas"], strict=True):
            for name in copies.keys() & saved.keys():
                copies[name].copy_(saved[name])
    scale = parts["loss_scale"]
    if scale is not None and update is not None and update.scale is not None:
        update.scale.numbers = scale
    own = parts["device_optimizer"]
    if own is not None and update is not None and update.bound is not parts["optimizer"]:
        update.bound.__dict__.update(own)


def _set_random_state(executor: PoplarExecutor, state: list[int]) -> None:
    if not executor.isCompiled():
        return
    try:
        executor.rng_state = state
    except StateError as error:
        logger.warning("the random state of the file is not used: %s", error.message)


def _seed(options: Options) -> int | None:
    return options.random_seed if options.exists("random_seed") else None
