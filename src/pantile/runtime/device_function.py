"""`IPUContext`: run a plain function as a program on a software IPU.

    def step(x, weight, *, alpha):         IPUContext(step)(x, weight, alpha=0.5)
        return alpha * x @ weight              └── tensors: inputs; the rest: constants

The tensors among the arguments, however nested, are the inputs; everything else is part of the
program. A function is compiled once for each set of such constants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from pantile.enums import Compiler
from pantile.errors import Error
from pantile.options import Options
from pantile.runtime.executor import PoplarExecutor
from pantile.runtime.wrap import inferenceModel


class IPUContext:
    """Call it like the function; `model` is the module whose weights the function uses.

    Limits of strict mode hold only where `options` ask for them: the function is not a model that
    is being prepared for hardware. `compiler` is accepted; there is one compiler here.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        *,
        compiler: Compiler = Compiler.MLIR,
        options: Options | None = None,
        model: nn.Module | None = None,
    ) -> None:
        if not callable(func):
            raise Error(
                f"IPUContext: func={func!r} cannot be called", fix="pass a function or a module"
            )
        self.compiler = Compiler(compiler)
        self._function = func
        self._model = model
        self._options = options or Options().strict(False).engine("reference")
        self._executors: list[tuple[_Call, PoplarExecutor]] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function on the device. Leaves that want gradients get what it computed."""
        leaves, structure = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        call = _Call(structure, leaves)
        result, gradients = self._executor(call)(*map(_as_rows, tensors))
        for tensor, gradient in zip(tensors, gradients, strict=True):
            if gradient is not None and tensor.is_leaf:
                tensor.grad = gradient
        return result

    def _executor(self, call: _Call) -> PoplarExecutor:
        for known, executor in self._executors:
            if known.means(call):
                return executor
        module = _FunctionModule(self._function, call, self._model)
        self._executors.append((call, inferenceModel(module, self._options)))
        return self._executors[-1][1]


@dataclass(frozen=True)
class _Input:
    """What a program has to know of a tensor beside shape and type."""

    wants_gradient: bool
    is_row: bool


class _Call:
    """The arguments of a call, with their tensors left out."""

    def __init__(self, structure: pytree.TreeSpec, leaves: list[Any]) -> None:
        self._structure = structure
        self._leaves = [_outline(leaf) for leaf in leaves]

    def means(self, other: _Call) -> bool:
        """Whether the other call is the same program."""
        return self._structure == other._structure and all(
            mine is theirs or (type(mine) is type(theirs) and bool(mine == theirs))
            for mine, theirs in zip(self._leaves, other._leaves, strict=True)
        )

    def inputs(self, tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """The tensors as the function was given them."""
        outlines = [leaf for leaf in self._leaves if isinstance(leaf, _Input)]
        return [_restored(o, t) for o, t in zip(outlines, tensors, strict=True)]

    def arguments(self, inputs: list[torch.Tensor]) -> Any:
        """Positions and keywords, with these tensors."""
        rest = iter(inputs)
        leaves = [next(rest) if isinstance(leaf, _Input) else leaf for leaf in self._leaves]
        return pytree.tree_unflatten(leaves, self._structure)


class _FunctionModule(nn.Module):
    """The function as a forward of tensors: its result, and the gradients of its inputs."""

    def __init__(self, function: Callable[..., Any], call: _Call, model: nn.Module | None) -> None:
        super().__init__()
        self.function = function
        self.call = call
        self.model = model

    def forward(self, *tensors: torch.Tensor) -> Any:
        inputs = self.call.inputs(tensors)
        args, kwargs = self.call.arguments(inputs)
        with torch.enable_grad():
            result = self.function(*args, **kwargs)
        return result, [tensor.grad if tensor.is_leaf else None for tensor in inputs]


def _outline(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return _Input(leaf.requires_grad, is_row=_is_empty_batch(leaf))
    return leaf


def _is_empty_batch(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 0 and tensor.shape[0] == 0


def _as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """One row, where it would be an empty batch: an executor refuses those."""
    tensor = tensor.detach()
    return tensor[None] if _is_empty_batch(tensor) else tensor


def _restored(outline: _Input, tensor: torch.Tensor) -> torch.Tensor:
    """A leaf of the function's own: what it writes does not leave the device."""
    own = (tensor[0] if outline.is_row else tensor).detach().clone()
    return own.requires_grad_(outline.wants_gradient)
