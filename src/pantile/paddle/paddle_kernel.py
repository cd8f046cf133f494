"""The CPU kernel of an operator that Paddle has, as a torch function with a gradient.

    tensors ──► arrays ──► a Paddle program of that one operator, on the host ──► arrays ──► tensors

For custom operators in C++: their Paddle half has a kernel, and often a gradient. It runs as a
call on the host in the middle of the compiled program.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pantile.ops.host_call import host_call
from pantile.paddle.call import Call
from pantile.paddle.description import Operator
from pantile.paddle.scope import as_array
from pantile.paddle.wheel import require_paddle

_HIDDEN = ("op_", "ipu_", "with_quant_attr", "__")
_Key = tuple[tuple[tuple[int, ...], str], ...]


def run_kernel(call: Call) -> None:
    """The translation of an operator by Paddle's own kernel."""
    kernel = _Kernel(call.operator)
    tensors = [t for slot in call.operator.inputs for t in call.tensors(slot)]
    results = _KernelCall.apply(kernel, *tensors)  # type: ignore[no-untyped-call]
    names = [slot for slot, made in call.operator.outputs.items() for _ in made]
    for slot in dict.fromkeys(names):
        call.put_all([r for r, of in zip(results, names, strict=True) if of == slot], slot)


class _KernelCall(torch.autograd.Function):
    """Forward and backward are calls on the host."""

    @staticmethod
    def forward(ctx: Any, kernel: _Kernel, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.kernel = kernel
        ctx.save_for_backward(*tensors)
        return tuple(host_call(kernel.forward, kernel.operator.type, tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        kernel, tensors = ctx.kernel, ctx.saved_tensors
        kernel.inputs = len(tensors)
        name = f"{kernel.operator.type}_grad"
        found = iter(host_call(kernel.backward, name, [*tensors, *gradients]))
        return None, *[next(found) if t.is_floating_point() else None for t in tensors]


@dataclass(frozen=True)
class _Built:
    """The operator alone, and with its gradient; the names of what they make."""

    alone: Any
    program: Any
    results: list[str]
    gradients: list[str | None]


class _Kernel:
    """Programs of one operator, for the shapes it is called with."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.inputs = 0
        self._paddle = require_paddle()
        self._built: dict[_Key, _Built] = {}
        self._executor = self._paddle.static.Executor(self._paddle.CPUPlace())

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """The results of the operator."""
        arrays = [_array(tensor) for tensor in tensors]
        built = self._program(arrays)
        return self._run(built.alone, _named("in", arrays), built.results, tensors)

    def backward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """The gradients of the floating inputs: zeros where the operator has none."""
        arrays = [_array(tensor) for tensor in tensors]
        ins, outs = arrays[: self.inputs], arrays[self.inputs :]
        built = self._program(ins)
        known = [g for g in built.gradients if g is not None]
        fed = {**_named("in", ins), **_named("gradient", outs)}
        found = iter(self._run(built.program, fed, known, tensors))
        wanted = [t for t in tensors[: self.inputs] if t.is_floating_point()]
        pairs = zip(wanted, built.gradients, strict=True)
        return [torch.zeros_like(t) if g is None else next(found) for t, g in pairs]

    def _run(
        self, program: Any, fed: dict[str, Any], wanted: list[str], like: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        half = next((t.dtype for t in like if t.dtype in (torch.float16, torch.bfloat16)), None)
        arrays = self._executor.run(program, feed=fed, fetch_list=wanted) if wanted else []
        found = [torch.from_numpy(np.array(array)) for array in arrays]
        return [t.to(half) if half and t.dtype is torch.float32 else t for t in found]

    def _program(self, arrays: Sequence[Any]) -> _Built:
        key = tuple((array.shape, str(array.dtype)) for array in arrays)
        if key not in self._built:
            with _static_mode(self._paddle):
                self._built[key] = self._build(arrays)
        return self._built[key]

    def _build(self, arrays: Sequence[Any]) -> _Built:
        static = self._paddle.static
        program = static.Program()
        with static.program_guard(program, static.Program()):
            fed = [
                static.data(name, list(array.shape), str(array.dtype))
                for name, array in _named("in", arrays).items()
            ]
            for variable, array in zip(fed, arrays, strict=True):
                variable.stop_gradient = array.dtype.kind != "f"
            results = self._append(program.global_block(), fed)
            alone = program.clone()
            floating = [v for v in fed if not v.stop_gradient]
            gradients: list[Any] = []
            if floating:
                given = [
                    static.data(f"gradient{place}", list(v.shape), v.dtype)
                    for place, v in enumerate(results)
                ]
                gradients = static.gradients(results, floating, given)
        names = [None if gradient is None else gradient.name for gradient in gradients]
        return _Built(alone, program, [v.name for v in results], names)

    def _append(self, block: Any, fed: Sequence[Any]) -> list[Any]:
        operator, rest = self.operator, iter(fed)
        made = {
            slot: [block.create_var(name=f"out_{slot}_{place}") for place, _ in enumerate(names)]
            for slot, names in operator.outputs.items()
        }
        hidden = {k: v for k, v in operator.attributes.items() if not k.startswith(_HIDDEN)}
        inputs = {slot: [next(rest) for _ in names] for slot, names in operator.inputs.items()}
        block.append_op(type=operator.type, inputs=inputs, outputs=made, attrs=hidden)
        return [variable for variables in made.values() for variable in variables]


def _array(tensor: torch.Tensor) -> Any:
    """Kernels of the CPU have no half precision: it is computed in float32."""
    narrow = tensor.dtype in (torch.float16, torch.bfloat16)
    return as_array(tensor.float() if narrow else tensor)


def _named(prefix: str, arrays: Sequence[Any]) -> dict[str, Any]:
    return {f"{prefix}{place}": array for place, array in enumerate(arrays)}


@contextmanager
def _static_mode(paddle: Any) -> Any:
    dynamic = paddle.in_dynamic_mode()
    paddle.enable_static()
    try:
        yield
    finally:
        if dynamic:
            paddle.disable_static()
