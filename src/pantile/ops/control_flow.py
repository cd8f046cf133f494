"""Loops and branches inside a program.

`for_loop` has a count that is known when the program is compiled: the body is recorded `count`
times. `cond` records both branches and picks, for each output, the one the condition asks for when
the program runs. Both can be trained through. A caveat of picking: the branch not taken runs too,
so an infinite gradient in it (a square root at 0, say) becomes NaN, as with `torch.where`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pantile.errors import CaptureError, OperandValueError
from pantile.ops.context import current, strict_mode
from pantile.ops.operands import refuse_in_strict_training, require_int, require_tensor

Body = Callable[..., Any]


def for_loop(count: int, body: Body, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run `body` on copies of `inputs`, feeding its outputs back, `count` times.

    On the CPU it loops too; in strict mode it runs the body once there, as PopTorch did.
    """
    _check_inputs("for_loop", "inputs", inputs)
    if require_int("for_loop", "count", count) < 0:
        raise OperandValueError(
            f"for_loop: count={count} is negative", fix="pass a count of 0 or more"
        )
    refuse_in_strict_training("for_loop")
    values = [tensor.clone() for tensor in inputs]
    for _ in range(1 if current() is None and strict_mode() else count):
        values = _outputs(body(*values))
        if len(values) != len(inputs):
            raise CaptureError(
                f"for_loop: body returned {len(values)} tensors, inputs has {len(inputs)}",
                fix="return one tensor for each input, in the same order",
            )
    return values


def cond(
    condition: torch.Tensor,
    then_body: Body,
    then_inps: list[torch.Tensor],
    else_body: Body,
    else_inps: list[torch.Tensor],
) -> list[torch.Tensor]:
    """Results of `then_body` if `condition` holds when the program runs, else of `else_body`.

    Each body works on copies of its inputs. On the CPU only the branch taken is run.
    """
    _check_inputs("cond", "then_inps", then_inps)
    _check_inputs("cond", "else_inps", else_inps)
    require_tensor("cond", "condition", condition)
    refuse_in_strict_training("cond")
    if current() is None:
        body, inputs = (then_body, then_inps) if bool(condition) else (else_body, else_inps)
        return _outputs(body(*(tensor.clone() for tensor in inputs)))
    chosen = _outputs(then_body(*(tensor.clone() for tensor in then_inps)))
    otherwise = _outputs(else_body(*(tensor.clone() for tensor in else_inps)))
    _check_alike(chosen, otherwise)
    holds = condition.reshape(()).bool()
    return [torch.where(holds, a, b) for a, b in zip(chosen, otherwise, strict=True)]


def _outputs(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def _check_alike(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> None:
    kinds = [[(tuple(t.shape), t.dtype) for t in outputs] for outputs in (first, second)]
    if kinds[0] != kinds[1]:
        raise CaptureError(
            f"cond: then_body returns {kinds[0]}, else_body returns {kinds[1]}",
            fix="return the same number of tensors, of the same shapes and types, from both",
        )


def _check_inputs(op: str, name: str, inputs: Any) -> None:
    if not isinstance(inputs, list):
        raise OperandValueError(
            f"{op}: argument {name}: Object is not list, it is {type(inputs).__name__}",
            fix=f"pass a list of tensors as {name}",
        )
    for index, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            raise OperandValueError(
                f"{op}: argument {name}: Object contained in list at index {index} is not "
                "torch.tensor, it is "
                f"{type(value).__name__}",
                fix="convert it with torch.as_tensor(value)",
            )
