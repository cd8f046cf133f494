"""Inference from saved models, with the methods of `paddle.inference`. Paddle is not needed.

config = Config("model/mnist")            # the prefix of .pdmodel and .pdiparams
config.enable_ipu(ipu_micro_batch_size=4)
predictor = create_predictor(config)
predictor.get_input_handle("img").copy_from_cpu(array)
predictor.run()
result = predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pantile.errors import InputMismatch, OptionError, StoreError
from pantile.paddle.registry import translations
from pantile.paddle.saved_model import SavedModel, read_saved_model
from pantile.paddle.scope import Array
from pantile.paddle.session import Session, Settings


@dataclass(frozen=True)
class IpuConfig:
    """The IPU settings of a `Config`; the names are Paddle's."""

    ipu_device_num: int = 1
    ipu_micro_batch_size: int = 1
    ipu_enable_pipelining: bool = False
    ipu_batches_per_step: int = 1
    ipu_enable_fp16: bool = False
    ipu_replica_num: int = 1
    ipu_available_memory_proportion: float = 1.0
    ipu_enable_half_partial: bool = False
    ipu_enable_model_runtime_executor: bool = False
    ipu_custom_ops_info: tuple[tuple[str, ...], ...] = ()
    ipu_custom_patterns: tuple[tuple[str, bool], ...] = ()

    def changed(self, **values: Any) -> IpuConfig:
        """The same with other values, checked."""
        defaults = {field.name: field.default for field in fields(IpuConfig)}
        for name, value in values.items():
            kind: Any = type(defaults[name])
            if kind is float and isinstance(value, int) and not isinstance(value, bool):
                continue
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise OptionError(f"{name}={value!r}", fix=f"pass a {kind.__name__}")
            if kind is int and value < 1:
                raise OptionError(f"{name}={value}", fix="pass 1 or more")
        made = replace(self, **values)
        if made.ipu_enable_pipelining and made.ipu_batches_per_step < made.ipu_device_num:
            raise OptionError(
                f"ipu_batches_per_step={made.ipu_batches_per_step} with a pipeline of "
                f"{made.ipu_device_num} IPUs",
                fix="pass at least as many batches per step as IPUs",
            )
        return made

    def settings(self) -> Settings:
        """The same for a session. Batches per step count only in a pipeline, as in Paddle."""
        return Settings(
            micro_batch=self.ipu_micro_batch_size,
            batches_per_step=self.ipu_batches_per_step if self.ipu_enable_pipelining else 1,
            replicas=self.ipu_replica_num if self.ipu_replica_num > 1 else None,
            any_batch=True,
            half=self.ipu_enable_fp16,
            sharded=self.ipu_device_num > 1,
            pipelined=self.ipu_enable_pipelining,
            devices=self.ipu_device_num,
        )


def read_ipu_config(path: str | Path, before: IpuConfig) -> IpuConfig:
    """Settings from a text file with one `key,value` a line."""
    known = {field.name: field for field in fields(IpuConfig)}
    values: dict[str, Any] = {}
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}", fix="pass a text file") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        key, _, written = (part.strip() for part in line.partition(","))
        if key not in known:
            raise OptionError(
                f"{path}, line {number}: unknown key {key!r}",
                fix=f"use one of {', '.join(known)}",
            )
        values[key] = _parsed(written, known[key].default, f"{path}, line {number}: {key}")
    return before.changed(**values)


def _parsed(written: str, default: Any, place: str) -> Any:
    if isinstance(default, bool):
        if written.lower() in ("true", "1", "false", "0"):
            return written.lower() in ("true", "1")
    elif isinstance(default, tuple):
        return default
    else:
        try:
            return type(default)(written)
        except ValueError:
            pass
    raise OptionError(f"{place}={written!r}", fix=f"write a {type(default).__name__}")


class Config:
    """Which model, and how it is run."""

    def __init__(self, model: str | Path, parameters: str | Path | None = None) -> None:
        self._model, self._parameters = Path(model), parameters
        self.ipu = IpuConfig()

    def prog_file(self) -> str:
        """The program file."""
        return str(self._model)

    def params_file(self) -> str:
        """The parameter file; empty if it lies beside the program."""
        return "" if self._parameters is None else str(self._parameters)

    def enable_ipu(
        self,
        ipu_device_num: int = 1,
        ipu_micro_batch_size: int = 1,
        ipu_enable_pipelining: bool = False,
        ipu_batches_per_step: int = 1,
    ) -> None:
        """Set devices and batches."""
        self.ipu = self.ipu.changed(
            ipu_device_num=ipu_device_num,
            ipu_micro_batch_size=ipu_micro_batch_size,
            ipu_enable_pipelining=ipu_enable_pipelining,
            ipu_batches_per_step=ipu_batches_per_step,
        )

    def set_ipu_config(
        self,
        ipu_enable_fp16: bool = False,
        ipu_replica_num: int = 1,
        ipu_available_memory_proportion: float = 1.0,
        ipu_enable_half_partial: bool = False,
        ipu_enable_model_runtime_executor: bool = False,
    ) -> None:
        """Set precision and replicas."""
        self.ipu = self.ipu.changed(
            ipu_enable_fp16=ipu_enable_fp16,
            ipu_replica_num=ipu_replica_num,
            ipu_available_memory_proportion=ipu_available_memory_proportion,
            ipu_enable_half_partial=ipu_enable_half_partial,
            ipu_enable_model_runtime_executor=ipu_enable_model_runtime_executor,
        )

    def set_ipu_custom_info(
        self,
        ipu_custom_ops_info: Sequence[Sequence[str]] = (),
        ipu_custom_patterns: Mapping[str, bool] | None = None,
    ) -> None:
        """Name custom operators; their functions come from `register_operator`."""
        self.ipu = self.ipu.changed(
            ipu_custom_ops_info=tuple(tuple(map(str, info)) for info in ipu_custom_ops_info),
            ipu_custom_patterns=tuple((ipu_custom_patterns or {}).items()),
        )

    def load_ipu_config(self, path: str | Path) -> None:
        """Settings from a text file with one `key,value` a line."""
        self.ipu = read_ipu_config(path, self.ipu)


class TensorHandle:
    """An input or an output of a predictor."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._array: Array | None = None
        self._shape: list[int] | None = None

    def name(self) -> str:
        """Its name in the program."""
        return self._name

    def reshape(self, shape: Sequence[int]) -> None:
        """Say which shape will be given; what is given decides."""
        self._shape = [int(size) for size in shape]

    def copy_from_cpu(self, array: Array) -> None:
        """Give the input a value."""
        self._array = np.array(array)

    share_external_data = copy_from_cpu

    def copy_to_cpu(self) -> Array:
        """The value of the output."""
        if self._array is None:
            raise InputMismatch(
                f"{self._name!r} has no value yet", fix="call predictor.run() before copy_to_cpu()"
            )
        return self._array

    def shape(self) -> list[int]:
        """The shape of the value, or the one that was announced."""
        return list(self._array.shape) if self._array is not None else list(self._shape or [])

    def lod(self) -> list[list[int]]:
        """Levels of detail, which nothing here has."""
        return []


class Predictor:
    """Runs a saved model."""

    def __init__(self, model: SavedModel, settings: Settings) -> None:
        self._model, self._settings = model, settings
        self._session = Session(
            model.description,
            translations(),
            feeds=model.feeds,
            fetches=model.fetches,
            scope=model.scope,
            settings=settings,
        )
        self._inputs = {name: TensorHandle(name) for name in model.feeds}
        self._outputs = {name: TensorHandle(name) for name in model.fetches}

    def get_input_names(self) -> list[str]:
        """The names of what the model is fed."""
        return list(self._inputs)

    def get_output_names(self) -> list[str]:
        """The names of what the model gives."""
        return list(self._outputs)

    def get_input_handle(self, name: str) -> TensorHandle:
        """An input, to copy a value to."""
        return _named(self._inputs, name, "input")

    def get_output_handle(self, name: str) -> TensorHandle:
        """An output, to copy a value from."""
        return _named(self._outputs, name, "output")

    def run(self, inputs: Sequence[Any] | None = None) -> Any:
        """Run on the values of the input handles; or on arrays, whose results are returned."""
        if inputs is not None:
            for handle, value in zip(self._inputs.values(), inputs, strict=True):
                handle.copy_from_cpu(np.asarray(value))
        fed = {name: handle.copy_to_cpu() for name, handle in self._inputs.items()}
        results = self._session.run(fed)
        for handle, result in zip(self._outputs.values(), results, strict=True):
            handle._array = result
        return True if inputs is None else results

    def __call__(self, *arrays: Array) -> list[Array]:
        """The results for these arrays, in the order of `get_output_names`."""
        results: list[Array] = self.run(arrays)
        return results

    def clone(self) -> Predictor:
        """Another predictor of the same model, for another thread."""
        return Predictor(self._model, self._settings)

    def clear_intermediate_tensor(self) -> None:
        """Nothing is kept between runs that could be cleared."""

    def try_shrink_memory(self) -> int:
        """Nothing is kept between runs that could be given back."""
        return 0

    @property
    def network(self) -> torch.nn.Module:
        """The model as a torch module."""
        return self._session.network


def create_predictor(config: Config) -> Predictor:
    """A predictor for the model of a `Config`."""
    model = read_saved_model(config.prog_file(), config.params_file() or None)
    return Predictor(model, config.ipu.settings())


def load_inference_model(
    model: str | Path, parameters: str | Path | None = None, *, micro_batch_size: int = 1
) -> Predictor:
    """Read a saved model from the prefix of its files."""
    settings = Settings(micro_batch=micro_batch_size, any_batch=True)
    return Predictor(read_saved_model(model, parameters), settings)


def _named(handles: Mapping[str, TensorHandle], name: str, what: str) -> TensorHandle:
    if name not in handles:
        raise InputMismatch(
            f"the model has no {what} {name!r}", fix=f"use one of {', '.join(handles)}"
        )
    return handles[name]
