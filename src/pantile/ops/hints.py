"""Ops that compute nothing, or nothing new, and tell the compiler something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pantile.enums import MatMulSerializationMode, OverlapMode
from pantile.errors import OperandError, OperandTypeError, OperandValueError
from pantile.ops.context import current
from pantile.ops.operands import require_tensor


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of `tensor` that no optimisation removes. On the CPU, the tensor itself."""
    require_tensor("nop", "tensor", tensor)
    return tensor if current() is None else _marked(tensor.clone(), "nop")


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """Let the op that made `tensor` use this proportion of a tile's memory for temporaries."""
    require_tensor("set_available_memory", "tensor", tensor)
    proportion = available_memory_proportion
    if isinstance(proportion, bool) or not isinstance(proportion, (int, float)):
        raise OperandError(
            "set_available_memory: argument available_memory_proportion must be a number, "
            f"not {proportion!r}",
            fix="pass a proportion between 0 and 1, for example 0.6",
        )
    if not 0 <= proportion <= 1:
        raise OperandError(
            f"set_available_memory: proportion={proportion} is not between 0 and 1",
            fix="pass a proportion between 0 and 1, for example 0.6",
        )
    return _marked(tensor, "available_memory", proportion=float(proportion))


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Keep these activations for the backward pass, and recompute what lies between such points.

    One tensor returns a tensor, several a tuple, one list or tuple the same kind of container.
    """
    container = None
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        container = tensors[0]
        tensors = tuple(container)
    for index, tensor in enumerate(tensors):
        if not isinstance(tensor, torch.Tensor):
            raise OperandValueError(
                f"recomputationCheckpoint: argument {index} must be a torch.Tensor, "
                f"not {type(tensor).__name__}",
                fix="pass tensors, or one list or tuple of tensors",
            )
    marked = tuple(_marked(tensor, "recompute_checkpoint") for tensor in tensors)
    if container is not None:
        return _like(container, marked)
    return marked[0] if len(marked) == 1 else marked


def serializedMatMul(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: MatMulSerializationMode,
    factor: int = 0,
    keep_precision: bool = False,
) -> torch.Tensor:
    """Multiply `lhs` and `rhs`, split into `factor` products along one dimension on the device."""
    expected = (
        ("lhs", lhs, torch.Tensor, "a torch.Tensor"),
        ("rhs", rhs, torch.Tensor, "a torch.Tensor"),
        ("mode", mode, MatMulSerializationMode, "a poptorch.MatMulSerializationMode"),
        ("factor", factor, int, "an int"),
        ("keep_precision", keep_precision, bool, "a bool"),
    )
    for name, value, kind, wanted in expected:
        if not isinstance(value, kind):
            raise OperandTypeError(
                f"serializedMatMul: argument {name} must be {wanted}, not {type(value).__name__}",
                fix=f"pass {wanted} as {name}",
            )
    details = {"mode": mode, "factor": factor, "keep_precision": keep_precision}
    return _marked(torch.matmul(lhs, rhs), "serialized_matmul", **details)


def set_overlap_for_input(input_tensors: Any, mode: OverlapMode) -> Any:
    """Let the transfer of these inputs overlap with compute. They can be nested."""
    return _overlap("set_overlap_for_input", "overlap_input", input_tensors, mode=mode)


def set_overlap_for_output(output_tensors: Any, mode: OverlapMode) -> Any:
    """Let the transfer of these outputs overlap with compute. They can be nested."""
    return _overlap("set_overlap_for_output", "overlap_output", output_tensors, mode=mode)


def _overlap(op: str, kind: str, structure: Any, *, mode: OverlapMode) -> Any:
    if not isinstance(mode, OverlapMode):
        raise OperandError(
            f"{op}: argument mode must be a poptorch.OverlapMode, not {type(mode).__name__}",
            fix="pass one of " + ", ".join(f"poptorch.OverlapMode.{m.name}" for m in OverlapMode),
        )

    recorder = current()
    distinct = recorder is not None and recorder.strict

    def mark(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        # A tensor of its own, so that other uses of the unmarked one can be told apart.
        marked: torch.Tensor = torch.ops.aten.alias.default(leaf) if distinct else leaf
        return _marked(marked, kind, mode=mode)

    return pytree.tree_map(mark, structure)


def _marked(tensor: torch.Tensor, kind: str, **details: Any) -> torch.Tensor:
    recorder = current()
    if recorder is not None:
        recorder.mark(tensor, kind, **details)
    return tensor


def _like(container: Any, items: tuple[torch.Tensor, ...]) -> Any:
    make: Callable[..., Any] = getattr(container, "_make", type(container))
    return make(items)
