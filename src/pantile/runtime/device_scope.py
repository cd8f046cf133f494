"""`IPUScope`: the ops of a `with` block become a function on the device.

    with IPUScope([x]) as ipu:         tape: add(x, 5) -> a; mul(a, 3) -> b
        ipu.outputs((x + 5) * 3)
    ipu(other)                         the same calls, from `other` to b

The block runs on the host once, with the tensors it was given; what it wrote to the inputs is taken
back. Each call plays the tape on the device. Other tensors are constants of the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from pantile.enums import Compiler
from pantile.errors import StateError
from pantile.options import Options
from pantile.runtime.device_function import IPUContext

_DEVICES = ("ipu", "xla")


class IPUScope:
    """Enter it with the inputs, name the outputs, and call it like a function.

    `parameters_and_buffers`, `model` and `compile_using` are accepted: a tape knows what it uses.
    """

    def __init__(
        self,
        inputs: Sequence[torch.Tensor],
        parameters_and_buffers: Iterable[Any] | None = None,
        *,
        options: Options | None = None,
        model: nn.Module | None = None,
        compile_using: Compiler = Compiler.PopART,
    ) -> None:
        self._inputs = list(inputs)
        self._before: list[torch.Tensor] = []
        self._tape = _Tape()
        self._modes = ExitStack()
        self._outputs: Any = None
        self._context = IPUContext(self._play, compiler=compile_using, options=options)

    def __enter__(self) -> Self:
        self._before = [tensor.detach().clone() for tensor in self._inputs]
        self._modes.enter_context(_OnHost())
        self._modes.enter_context(self._tape)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._modes.close()
        with torch.no_grad():
            for tensor, before in zip(self._inputs, self._before, strict=True):
                tensor.copy_(before)

    def outputs(self, tensors: Any) -> None:
        """What a call returns; one tensor in a list counts as that tensor."""
        is_single = isinstance(tensors, (list, tuple)) and len(tensors) == 1
        self._outputs = tensors[0] if is_single else tensors

    def __call__(self, *inputs: torch.Tensor) -> Any:
        """Run the block with other inputs, on the device."""
        if self._outputs is None:
            raise StateError(
                "IPUScope: the block named no outputs", fix="call ipu.outputs(...) inside it"
            )
        return self._context(*inputs)

    def _play(self, *inputs: torch.Tensor) -> Any:
        values = dict(zip(map(id, self._inputs), inputs, strict=True))
        return self._tape.play(values, self._outputs)


class _Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every op that runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._calls.append((func, (args, kwargs or {}), result))
        return result

    def play(self, values: dict[int, torch.Tensor], outputs: Any) -> Any:
        """Run the ops again, with other values for some tensors."""

        def current(tensor: torch.Tensor) -> torch.Tensor:
            return values.get(id(tensor), tensor)

        for func, call, result in self._calls:
            args, kwargs = pytree.tree_map_only(torch.Tensor, current, call)
            again = pytree.tree_leaves(func(*args, **kwargs))
            for before, now in zip(pytree.tree_leaves(result), again, strict=True):
                values[id(before)] = now
        return pytree.tree_map_only(torch.Tensor, current, outputs)


class _OnHost(TorchFunctionMode):
    """A software IPU has no device of its own in torch: its names mean the host."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = {name: _host(value) for name, value in (kwargs or {}).items()}
        return func(*map(_host, args), **named)


def _host(value: Any) -> Any:
    is_device = isinstance(value, (str, torch.device))
    return "cpu" if is_device and str(value).partition(":")[0] in _DEVICES else value
