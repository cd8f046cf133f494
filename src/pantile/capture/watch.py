"""What is seen of forward above the dispatcher: loss functions, and weights reached by side doors.

`Watch` is a torch-function mode. It notes every call of a recognised loss (spec 2.8), and where
user code holds a real parameter outside the module's tables (a list, a closure, an RNN's flat
weights) it hands the fake one to the op, so that gradients flow to the right place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch._subclasses import FakeTensor
from torch.overrides import TorchFunctionMode

from pantile.capture.device_norms import DeviceNorms
from pantile.capture.eager_paths import EAGER_PATHS, take_eager_path
from pantile.capture.mixed_types import MIXING, call_mixed
from pantile.capture.narrow_types import narrowed
from pantile.capture.refusals import refuse
from pantile.logging import logger

RECOGNISED_LOSSES: frozenset[Callable[..., Any]] = frozenset(
    {
        F.binary_cross_entropy,
        F.binary_cross_entropy_with_logits,
        F.cosine_embedding_loss,
        F.cross_entropy,
        F.ctc_loss,
        F.gaussian_nll_loss,
        F.hinge_embedding_loss,
        F.huber_loss,
        F.kl_div,
        F.l1_loss,
        F.margin_ranking_loss,
        F.mse_loss,
        F.multi_margin_loss,
        F.multilabel_margin_loss,
        F.multilabel_soft_margin_loss,
        F.nll_loss,
        F.poisson_nll_loss,
        F.smooth_l1_loss,
        F.soft_margin_loss,
        F.triplet_margin_loss,
        F.triplet_margin_with_distance_loss,
    }
)


# Functions that make tensors on the device although no device was named.
_FACTORIES: dict[Any, str] = {
    getattr(torch, name): name
    for name in (
        *("arange", "empty", "full", "full_like", "linspace", "logspace", "normal", "ones"),
        *("rand", "randint", "randn", "randperm", "range", "tensor", "zeros", "zeros_like"),
    )
}


_MOVES = (torch.Tensor.to, torch.Tensor.type_as)


def _is_device(value: Any) -> bool:
    """Is this the device the program is for, by one of the names scripts give it?"""
    name = value.type if isinstance(value, torch.device) else value
    return isinstance(name, str) and name.partition(":")[0] in ("ipu", "xla")


def _here(value: Any) -> Any:
    """While forward is recorded, tensors of the device are those of this process."""
    return torch.device("cpu") if _is_device(value) else value


def _names_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a conversion says where the tensor goes: a device, or another tensor's."""
    places = (torch.device, str, FakeTensor)
    return any(isinstance(value, places) for value in (*args, *kwargs.values()))


def _text(tensor: torch.Tensor) -> str:
    """What `print` shows in forward: there are no values yet."""
    return f"tensor(<unavailable>, size={tuple(tensor.shape)}, dtype={tensor.dtype})"


class Watch(TorchFunctionMode):
    """Records losses; exchanges real state tensors for their fakes.

    In strict mode it also refuses what the device cannot compute, and notes the tensors that
    forward moves there itself (`moved`).
    """

    def __init__(self, fakes: dict[int, torch.Tensor], *, strict: bool, norms: DeviceNorms) -> None:
        super().__init__()
        self.losses: list[torch.Tensor] = []
        self.moved: dict[int, torch.Tensor] = {}  # holds them, so that ids stay theirs
        self._fakes = fakes
        self._strict = strict
        self._norms = norms
        self._told: set[str] = set()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        args, kwargs = self.exchanged(args, kwargs or {})
        if any(_is_device(value) for value in (*args[1:], *kwargs.values())):
            args, kwargs = pytree.tree_map(_here, (args, kwargs))
        if func is torch.Tensor.__repr__ and isinstance(args[0], FakeTensor):
            return _text(args[0])
        if self._strict:
            func, args, kwargs = narrowed(func, args, kwargs)
            if func is torch.ops.aten.lift_fresh.default:
                return args[0]  # torch.LongTensor([1]) and the like: they stay on the host
            refuse(func, args, kwargs)
            self._tell_of_factory(func, args, kwargs)
            func, args, kwargs = self._norms.changed(func, args, kwargs)
        if func in EAGER_PATHS:
            result = take_eager_path(func, args, kwargs)
        elif func in MIXING:
            result = call_mixed(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if func in RECOGNISED_LOSSES and isinstance(result, torch.Tensor):
            self.losses.append(result)
        if self._strict and func in _MOVES and _names_device(args[1:], kwargs):
            self.moved[id(result)] = result
        return result

    def _tell_of_factory(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = _FACTORIES.get(func)
        if name is None or name in self._told or kwargs.get("device") is not None:
            return
        if name == "normal" and any(isinstance(a, torch.Tensor) for a in args):
            return
        self._told.add(name)
        logger.warning("No device is set in torch.%s(): forcing to IPU", name)

    def exchanged(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with fake tensors in place of real parameters and buffers."""
        if self._touches_state(args) or self._touches_state(tuple(kwargs.values())):
            args, kwargs = pytree.tree_map_only(torch.Tensor, self._fake_of, (args, kwargs))
        return args, kwargs

    def _touches_state(self, values: tuple[Any, ...]) -> bool:
        for value in values:
            if isinstance(value, torch.Tensor):
                if id(value) in self._fakes:
                    return True
            elif isinstance(value, (list, tuple)) and self._touches_state(tuple(value)):
                return True
        return False

    def _fake_of(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._fakes.get(id(tensor), tensor)
