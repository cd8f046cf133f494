"""The mixin of all PopTorch optimizers: device state, gradient clipping, copying.

State has two homes, and two flags say which one is ahead (never both):

      host                                         device
      _ipu_state, _ipu_param   ◄── read  ────      ipu_state_is_dirty   set after each run
                               ──  write ───►      host_state_is_dirty  set by load_state_dict

An executor attaches itself as a `StateSource`; reading is lazy and cached until the next run.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, Self, cast

import torch
from torch import Tensor

from pantile.errors import OptimizerError, OptimizerStateError
from pantile.logging import logger
from pantile.optim.accumulators import check_accumulator_type, state_dtype
from pantile.optim.clipping import clip_by_global_norm
from pantile.optim.variable_attributes import VariableAttributes
from pantile.options.environment import strict as strict_by_environment

Tensors = dict[str, Tensor]


class StateSource(Protocol):
    """The executor's side of the optimizer state.

    `read` returns (`ipu_state`, `ipu_param`), each name → tensor, and brings `optimizer.state` up
    to date if the host is to see it. `write` uploads the entries it is given and keeps the others.
    """

    @property
    def strict(self) -> bool: ...
    def read(self) -> tuple[Tensors, Tensors]: ...
    def write(self, ipu_state: Tensors, ipu_param: Tensors) -> None: ...


class Optimizer(torch.optim.Optimizer):
    """Mixin base of all PopTorch optimizers.

    Attributes that hold for all parameter groups, read at capture:

    | name             | meaning                                                   | default |
    |------------------|-----------------------------------------------------------|---------|
    | `loss_scaling`   | factor on the loss gradient, divided out before the update | 1.0     |
    | `accum_type`     | type in which gradients are accumulated; None = float32    | None    |
    | `max_grad_norm`  | global norm to which gradients are clipped; inf = never    | inf     |
    | `variable_attrs` | the attributes that may change after compilation           |         |

    `step()` runs on the CPU like any torch optimizer. Loss scaling is the executor's business:
    it cancels out, so `step()` expects unscaled gradients.
    """

    loss_scaling: float
    max_grad_norm: float
    accum_type: torch.dtype | None
    variable_attrs: VariableAttributes
    ipu_state_is_dirty: bool
    host_state_is_dirty: bool

    #: Names that may be marked variable or constant.
    attribute_names: ClassVar[tuple[str, ...]] = ()
    #: Global attributes, read at capture and kept when the optimizer is copied.
    global_names: ClassVar[tuple[str, ...]] = ("loss_scaling", "accum_type", "max_grad_norm")
    #: State tensor name -> the attribute that gives its type.
    accumulator_types: ClassVar[Mapping[str, str]] = {}

    def _configure(self, given: Mapping[str, object], **attributes: Any) -> None:
        """Set the global attributes (None = not given) and what is variable."""
        for name, value in attributes.items():
            if name.endswith("accum_type"):
                check_accumulator_type(name, value)
            setattr(self, name, value)
        self.loss_scaling = _positive("loss_scaling", attributes.get("loss_scaling"), 1.0)
        self.max_grad_norm = _positive("max_grad_norm", attributes.get("max_grad_norm"), math.inf)
        explicit = given_only({**given, **attributes})
        self.variable_attrs = VariableAttributes(
            [name for name in explicit if name in self.attribute_names], self.attribute_names
        )
        self.ipu_state_is_dirty = False
        self.host_state_is_dirty = False
        self._ipu_state: Tensors | None = None
        self._ipu_param: Tensors | None = None
        self._state_source: StateSource | None = None

    # -- the update ---------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Clip if asked to, then update every parameter that has a gradient, on the CPU."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.set_grad_enabled(bool(self.defaults.get("differentiable", False))):
            if self.max_grad_norm != math.inf:
                clip_by_global_norm([p for _, p in self._with_grad()], self.max_grad_norm)
            self._update_parameters()
        return loss

    def _update_parameters(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no update rule")

    def _with_grad(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """(group, parameter) of each parameter that has a gradient.

        The parameter is Any because torch types its `grad` as optional, which it is not here.
        """
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    yield group, param

    def mixes_types(self) -> bool:
        """True if some state tensor is of another type than its parameter."""
        return any(
            self._state_dtype(param, name) != param.dtype
            for group in self.param_groups
            for param in group["params"]
            for name in self.accumulator_types
        )

    def _state_dtype(self, param: Tensor, name: str) -> torch.dtype:
        return state_dtype(param, self._requested_type(name))

    def _requested_type(self, name: str) -> torch.dtype | None:
        return cast("torch.dtype | None", getattr(self, self.accumulator_types[name]))

    # -- state --------------------------------------------------------------------------------

    def attach_state_source(self, source: StateSource) -> None:
        """Let an executor own the device side of the state. A loaded state stays to be uploaded."""
        self._state_source = source
        self.ipu_state_is_dirty = not self.host_state_is_dirty

    def detach_state_source(self, *, upload_again: bool = False) -> None:
        """Forget the executor. The state read last stays, for the next executor if asked to."""
        self._state_source = None
        self.ipu_state_is_dirty = False
        if upload_again:
            self.upload_again()

    def upload_again(self) -> None:
        """Write the state that was read last before the next run, if one was read."""
        if self._ipu_state is not None and not self.ipu_state_is_dirty:
            self.host_state_is_dirty = True

    def device_state_changed(self) -> None:
        """The executor has run: what was read before is out of date."""
        if self._state_source is not None:
            self.ipu_state_is_dirty = True

    def upload_state(self) -> None:
        """Write a loaded state to the device, if one waits. Entries it lacks keep their values."""
        if self._state_source is None or not self.host_state_is_dirty:
            return
        device_state, device_param = self._state_source.read()
        loaded_state, loaded_param = self._ipu_state or {}, self._ipu_param or {}
        missing = sorted(
            (device_state.keys() - loaded_state.keys())
            | (device_param.keys() - loaded_param.keys())
        )
        if missing:
            logger.warning(
                "The loaded optimizer state has no entry for %s: the device keeps its values.",
                missing,
            )
        logger.debug("Writing optimiser state tensors from host to IPU memory")
        self._state_source.write(loaded_state, loaded_param)
        self.host_state_is_dirty = False
        self.ipu_state_is_dirty = True

    def has_state(self) -> bool:
        """True if there is a device state, on the host or to be read."""
        return self._ipu_state is not None or self.ipu_state_is_dirty

    def state_dict(self) -> dict[str, Any]:
        """Torch's own state dictionary, plus `ipu_state` and `ipu_param` (None before compiling).

        The extra keys are ignored by `torch.optim`, so the result loads there too.
        """
        self._refresh()
        state = super().state_dict()
        return {**state, "ipu_state": self._ipu_state, "ipu_param": self._ipu_param}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state. Its device part is uploaded before the next run.

        A state saved by plain `torch.optim` is accepted too, unless strict mode is on.
        """
        self._check_loadable(state_dict)
        super().load_state_dict(state_dict)
        self._restore_state_types(state_dict)
        if state_dict.get("ipu_state") is None and state_dict.get("ipu_param") is None:
            self.ipu_state_is_dirty = self._state_source is not None
            self.host_state_is_dirty = False
            return
        self._ipu_state = dict(state_dict["ipu_state"] or {})
        self._ipu_param = dict(state_dict["ipu_param"] or {})
        self.host_state_is_dirty = True
        self.ipu_state_is_dirty = False

    def get_state_dict(self) -> dict[str, Any]:
        """The same as `state_dict`."""
        return self.state_dict()

    def set_state_dict(self, state: dict[str, Any]) -> None:
        """The same as `load_state_dict`."""
        self.load_state_dict(state)

    def _check_loadable(self, state_dict: Mapping[str, Any]) -> None:
        keys = ("ipu_state", "ipu_param")
        strict = self._state_source.strict if self._state_source else strict_by_environment()
        if not strict and "param_groups" in state_dict:
            return
        if all(key in state_dict for key in keys) and any(state_dict[key] for key in keys):
            return
        raise OptimizerStateError(
            "Only IPU optimizer states can be loaded onto the IPU: state_dict needs non-empty "
            f"'ipu_state' and 'ipu_param', it has {sorted(map(str, state_dict))}",
            fix="save optimizer.state_dict() after the model was compiled"
            + (", or turn strict mode off to load a torch.optim state" if strict else ""),
        )

    def _restore_state_types(self, state_dict: Mapping[str, Any]) -> None:
        # torch casts every loaded tensor to its parameter's type; ours may be wider.
        loaded = (index for group in state_dict["param_groups"] for index in group["params"])
        own = (param for group in self.param_groups for param in group["params"])
        for index, param in zip(loaded, own, strict=True):
            for name, value in state_dict["state"].get(index, {}).items():
                if name in self.accumulator_types and isinstance(value, Tensor):
                    dtype = self._state_dtype(param, name)
                    if self.state[param][name].dtype != dtype:
                        self.state[param][name] = value.detach().to(param.device, dtype, copy=True)

    def _refresh(self) -> None:
        if self.ipu_state_is_dirty and self._state_source is not None:
            logger.debug("Writing optimiser state tensors from IPU to host.")
            self._ipu_state, self._ipu_param = self._state_source.read()
            self.ipu_state_is_dirty = False
        elif self._ipu_state is not None:
            logger.debug("Using cached optimiser state dict")

    # -- copies -------------------------------------------------------------------------------

    def __copy__(self) -> Self:
        """A copy over the same parameters, without an executor. Reads nothing from the device."""
        copied = type(self).__new__(type(self))
        copied.__setstate__(self._kept())
        return copied

    def __getstate__(self) -> dict[str, Any]:
        self._refresh()
        return self._kept()

    def _kept(self) -> dict[str, Any]:
        names = (*self.global_names, "variable_attrs", "host_state_is_dirty")
        own = {name: getattr(self, name) for name in (*names, "_ipu_state", "_ipu_param")}
        no_executor = {"ipu_state_is_dirty": False, "_state_source": None}
        return {**super().__getstate__(), **own, **no_executor}


def given_only(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that were given: those that are not None."""
    return {name: value for name, value in arguments.items() if value is not None}


def plain_step(optimizer_class: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """Torch's update rule without the wrappers that would run the step hooks a second time."""
    return cast("Callable[..., Any]", inspect.unwrap(optimizer_class.step))


def refuse_amsgrad(groups: Iterable[Mapping[str, Any]]) -> None:
    """`amsgrad` has no counterpart on the device."""
    if any(group.get("amsgrad") for group in groups):
        raise OptimizerError(
            "amsgrad=True is not supported by the PopTorch optimizers",
            fix="leave amsgrad out, or use torch.optim.Adam or torch.optim.AdamW",
        )


def _positive(name: str, value: float | None, default: float) -> float:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise OptimizerError(
            f"{name}={value!r} must be a number greater than 0",
            fix=f"pass a positive {name}, or leave it out",
        )
    return value
