"""Modules and optimizers: what of them is written, and how they are made again without `__init__`.

A module is its class and its `__dict__`: flags, parameters, buffers, children, hooks, and whatever
the user put there. Two classes are made up at run time and are put back by other means: that of a
wrapped model (`instrument`) and that of a parametrised module (`torch.nn.utils.parametrize`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.hooks import RemovableHandle

from pantile.errors import StoreError
from pantile.ops.blocks import _BeginBlockHook
from pantile.runtime.instrument_link import original_class
from pantile.runtime.ownership import _Destroy

_HOOKS = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_load_state_dict_post_hooks",
    "_load_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
)
_HOOK_FLAGS = (
    "_forward_hooks_always_called",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
)
_KEPT_HOOKS = ("torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm", "torch.nn.modules")
_READS_OLD_FILES = "weight_norm.<locals>._weight_norm_compat_hook"
"""Lets a layer with the new weight_norm load a state_dict of the old one. It has no import path."""
_OPTIMIZER_PRIVATE = frozenset({"step", "_opt_called", "_step_count", "_zero_grad_profile_name"})


def plain_class(module: nn.Module) -> type[nn.Module]:
    """The module's class as it is written in some source file."""
    cls = original_class(type(module))
    if parametrize.is_parametrized(module):
        cls = original_class(cls.__bases__[0])
    return cls


def module_state(module: nn.Module, where: str) -> dict[str, Any]:
    """What is written of a module: all that differs from an empty `nn.Module`."""
    cls = plain_class(module)
    get_state: Any = cls.__getstate__
    state = dict(get_state(module))
    for name in _HOOKS:
        if state.get(name):
            state[name] = _kept_hooks(state[name], f"{where}.{name.strip('_')}")
    empty = vars(nn.Module())
    return {
        name: value
        for name, value in state.items()
        if not (name in empty and not value and not empty[name] and value == empty[name])
        and not isinstance(value, _Destroy)
        and name != "_compiled_call_impl"
    }


def _kept_hooks(hooks: Mapping[int, Any], where: str) -> dict[int, Any]:
    kept = OrderedDict()
    for number, hook in hooks.items():
        name = getattr(hook, "__qualname__", type(hook).__qualname__)
        if name == _READS_OLD_FILES:
            continue
        if not isinstance(hook, _BeginBlockHook) and not _is_torchs_own(hook):
            raise StoreError(
                f"{where} has {name}: hooks cannot be exported",
                fix="remove the hook before saving and register it again after load(), or save "
                "with export_model=False",
            )
        kept[number] = hook
    return kept


def _is_torchs_own(hook: object) -> bool:
    return type(hook).__module__.startswith(_KEPT_HOOKS)


def new_module(cls: type[nn.Module]) -> nn.Module:
    """A module with nothing in it; no `__init__` of the user runs."""
    module: nn.Module = object.__new__(cls)
    module.__dict__.update(vars(nn.Module()))
    return module


def set_module_state(module: nn.Module, state: dict[str, Any], *, parametrised: bool) -> None:
    """Give a new module what was written of it."""
    _renumber_hooks(state)
    set_state: Any = module.__setstate__
    set_state(state)
    if parametrised:
        names = list(module._modules["parametrizations"]._modules)  # type: ignore[union-attr]
        parametrize._inject_new_class(module)
        for name in names:
            parametrize._inject_property(module, name)


def _renumber_hooks(state: dict[str, Any]) -> None:
    """Hooks are found by numbers that torch counts from 0 in each process: take new ones."""
    used = {key for name in _HOOKS for key in state.get(name, {})}
    new = {key: RemovableHandle(OrderedDict()).id for key in sorted(used)}
    for name in (*_HOOKS, *_HOOK_FLAGS):
        if name in state:
            table = state[name]
            entries = [(new.get(key, key), value) for key, value in table.items()]
            table.clear()
            table.update(entries)


# Optimizers


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What is written of an optimizer: its groups, its state, and attributes of its own."""
    hooks = [name for name in vars(optimizer) if name.endswith("_hooks")]
    if any(vars(optimizer)[name] for name in hooks):
        raise StoreError(
            f"the optimizer {type(optimizer).__qualname__} has hooks, which cannot be exported",
            fix="remove them before saving and register them again after load()",
        )
    kept = dict(optimizer.__getstate__())
    own = {
        name: value
        for name, value in vars(optimizer).items()
        if name not in hooks and name not in _OPTIMIZER_PRIVATE and name not in kept
    }
    return {**own, **kept}


def set_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Give a new optimizer what was written of it."""
    optimizer.__setstate__(state)
    optimizer._zero_grad_profile_name = f"Optimizer.zero_grad#{type(optimizer).__name__}.zero_grad"
