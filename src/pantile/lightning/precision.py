"""`IPUPrecision`: which types a compiled step computes in.

    32-true                 float32
    16-true, bf16-true      weights, inputs and arithmetic in half
    16-mixed, bf16-mixed    weights in float32; products in half (autocast, recorded in the program)

`16-mixed` scales the loss by a factor that adapts, as on GPUs. The factor is an input of the
program: the gradients are scaled where they are computed, so small ones are not lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.utils._pytree as pytree

from pantile.lightning.modes import FUSED
from pantile.lightning.namespaces import Made, Namespace, made_class

PRECISIONS = ("32-true", "16-true", "bf16-true", "16-mixed", "bf16-mixed")
_SHORT = {16: "16-mixed", "16": "16-mixed", "bf16": "bf16-mixed", 32: "32-true", "32": "32-true"}
_HALF = {"16": torch.float16, "bf16": torch.bfloat16}


class IPUPrecisionMembers(Made):
    """The members of `IPUPrecision`, for either namespace."""

    is_ipu_precision = True
    precision: str
    scaler: Any

    def __init__(self, precision: Any = "32-true", *, loss_scaling: float | None = None) -> None:
        chosen = _SHORT.get(precision, precision)
        if chosen not in PRECISIONS:
            raise ValueError(
                f"`Trainer(accelerator='ipu', precision={precision!r})` is not supported. "
                f"`precision` must be one of: {', '.join(PRECISIONS)}."
            )
        self.precision = chosen
        self.device = "cpu"
        self.scaler = None
        if chosen == "16-mixed":
            options = {} if loss_scaling is None else {"init_scale": loss_scaling}
            self.scaler = torch.amp.GradScaler("cpu", **options)  # type: ignore[arg-type]

    @property
    def _half(self) -> torch.dtype | None:
        return _HALF.get(self.precision.partition("-")[0])

    @property
    def _is_true_half(self) -> bool:
        return self._half is not None and self.precision.endswith("true")

    def convert_module(self, module: Any) -> Any:
        """The weights of a `-true` precision are half."""
        return module.to(self._half) if self._is_true_half else module

    def convert_input(self, data: Any) -> Any:
        """Floating tensors of the batch, for a `-true` precision."""
        if not self._is_true_half:
            return data
        half = self._half

        def convert(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(half) if tensor.is_floating_point() else tensor

        return pytree.tree_map_only(torch.Tensor, convert, data)

    def convert_output(self, data: Any) -> Any:
        """As computed."""
        return data

    def backward(self, tensor: Any, model: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Hand the gradients over; a program that updates the weights has used them already."""
        if model.trainer.strategy.mode != FUSED:
            super().backward(tensor, model, optimizer, *args, **kwargs)  # type: ignore[misc]

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        """The surroundings of a step."""
        if self._half is None:
            yield
        elif self._is_true_half:
            with _default_dtype(self._half):
                yield
        else:
            # The cache would hold on to weights between the steps of one program.
            with torch.autocast("cpu", self._half, cache_enabled=False):
                yield

    @contextmanager
    def tensor_init_context(self) -> Iterator[None]:
        """The default type of new tensors."""
        half = self._half if self._is_true_half else None
        with _default_dtype(half or torch.get_default_dtype()):
            yield

    def module_init_context(self) -> Any:
        """The default type of new weights."""
        return self.tensor_init_context()


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def precision_of_weights(module: torch.nn.Module) -> str | None:
    """The precision that a module in half asks for; None for any other."""
    kinds = {p.dtype for p in module.parameters() if p.is_floating_point()}
    true = {frozenset({torch.float16}): "16-true", frozenset({torch.bfloat16}): "bf16-true"}
    return true.get(frozenset(kinds))


@cache
def precision_class(namespace: Namespace) -> Any:
    """`IPUPrecision` for one namespace."""
    base = namespace.find("plugins.precision.amp:MixedPrecision")
    return made_class("IPUPrecision", precision_class, namespace, IPUPrecisionMembers, base)


def as_ipu_precision(plugin: Any, namespace: Namespace) -> Any:
    """The plugin Lightning chose, as ours; a plugin of the user's own class stays."""
    own = precision_class(namespace)
    plain = namespace.find("plugins.precision.precision:Precision")
    if plugin is None or isinstance(plugin, own):
        return plugin
    half = namespace.find("plugins.precision.half:HalfPrecision")
    mixed = namespace.find("plugins.precision.amp:MixedPrecision")
    if type(plugin) in (plain, half, mixed):
        made = own(plugin.precision)
        if type(plugin) is mixed and plugin.scaler is not None and made.scaler is None:
            made.scaler = plugin.scaler
        return made
    if isinstance(plugin, (half, mixed)) or plugin.precision == "32-true":
        return plugin
    return own(plugin.precision)
