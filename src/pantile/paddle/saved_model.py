"""A model as Paddle saves it: `<prefix>.pdmodel` and `<prefix>.pdiparams`. Paddle is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pantile.errors import StoreError, UnknownFormat
from pantile.paddle.description import LOD_TENSOR, Block, Description, read_program
from pantile.paddle.parameters import read_parameters
from pantile.paddle.scope import TensorScope


@dataclass(frozen=True)
class SavedModel:
    """A program, what it is fed and gives, and its weights."""

    description: Description
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]
    scope: TensorScope


def read_saved_model(model: str | Path, parameters: str | Path | None = None) -> SavedModel:
    """Read a saved model from its two files, or from the prefix of both."""
    program_file, parameter_file = _files(Path(model), parameters)
    if program_file.suffix == ".json":
        from pantile.paddle.pir import read_pir

        description = read_pir(_bytes(program_file), str(program_file))
    else:
        description = read_program(_bytes(program_file), str(program_file))
    names = stored_names(description.main)
    tensors = {}
    if names:
        tensors = read_parameters(_bytes(parameter_file), names, str(parameter_file))
    return SavedModel(
        description,
        _ends(description.main, "feed"),
        _ends(description.main, "fetch"),
        TensorScope(tensors),
    )


def stored_names(block: Block) -> list[str]:
    """The names of the variables in a parameter file, in its order."""
    return sorted(
        v.name for v in block.variables.values() if v.persistable and v.kind == LOD_TENSOR
    )


def _files(model: Path, parameters: str | Path | None) -> tuple[Path, Path]:
    if model.suffix not in (".pdmodel", ".json"):
        candidates = [model.with_name(model.name + suffix) for suffix in (".pdmodel", ".json")]
        program = next((path for path in candidates if path.exists()), candidates[0])
    else:
        program = model
    if parameters is not None:
        return program, Path(parameters)
    return program, program.with_suffix(".pdiparams")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read: {error.strerror}",
            fix="pass the prefix given to save_inference_model, without a suffix",
        ) from error


def _ends(block: Block, kind: str) -> tuple[str, ...]:
    """The names that feed operators set, or fetch operators read, in the order of their columns."""
    found = [op for op in block.operators if op.type == kind]
    found.sort(key=lambda op: int(op.attributes.get("col", 0)))
    names: list[Sequence[str]] = [
        tuple(op.writes) if kind == "feed" else tuple(op.reads) for op in found
    ]
    if kind == "fetch" and not names:
        raise UnknownFormat(
            "the program fetches nothing: it was not saved for inference",
            fix="save it with paddle.static.save_inference_model or paddle.jit.save",
        )
    return tuple(group[0] for group in names if group)
