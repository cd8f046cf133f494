"""Ops that a C++ library registers with `torch.library`, found for `custom_op`.

    torch.ops.load_library("libacme.so")        TORCH_LIBRARY(com_acme, m) { m.def("Cube(…)"); }
    custom_op([x], "Cube", "com.acme", 1, [x])  calls torch.ops.com_acme.Cube(x)

Capture must know the shapes of its results. An op that brings no rule for them gets one: it answers
with the example outputs of the call that had such inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from pantile.errors import CaptureError

Spec = tuple[tuple[int, ...], torch.dtype]

_known: dict[tuple[str, Any], list[Spec]] = {}
_ruled: set[str] = set()


def library_op(domain: str, name: str) -> Any | None:
    """`torch.ops.<domain>.<name>`, dots in the domain written as underscores, if there is one."""
    return getattr(getattr(torch.ops, domain.replace(".", "_")), name, None)


def call_library_op(
    packet: Any,
    inputs: Sequence[torch.Tensor],
    attributes: dict[str, Any],
    examples: Sequence[torch.Tensor],
) -> Any:
    """Call the op; if it has no shape rule, `examples` are what it returns during capture."""
    name = packet._qualified_op_name
    _known[name, _key(inputs, attributes)] = [(tuple(t.shape), t.dtype) for t in examples]
    _give_rule(packet, name)
    return packet(*inputs, **attributes)


def _give_rule(packet: Any, name: str) -> None:
    overloads = packet.overloads()
    if name in _ruled or overloads != ["default"] or _has_rule(name):
        return
    single = len(packet.default._schema.returns) == 1

    def rule(*args: Any, **kwargs: Any) -> Any:
        specs = _known.get((name, _key(args, kwargs)))
        if specs is None:
            raise CaptureError(
                f"{name} has no shape rule, and was called without example outputs",
                fix="call it with poptorch.custom_op, or register torch.library.register_fake",
            )
        found = [torch.empty(shape, dtype=dtype) for shape, dtype in specs]
        return found[0] if single and len(found) == 1 else tuple(found)

    torch.library.register_fake(name, rule)
    _ruled.add(name)


def _has_rule(name: str) -> bool:
    from torch._library.simple_registry import singleton

    keys = ("Meta", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    if any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in keys):
        return True
    return singleton.find(name).fake_impl.kernel is not None


def _key(args: Any, kwargs: Any) -> Any:
    """What the shapes may depend on: shapes and types of tensors, values of the rest."""
    leaves, _ = pytree.tree_flatten(kwargs)
    tensors = [t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
    others = [a for a in pytree.tree_leaves(args) if not isinstance(a, torch.Tensor)]
    return (
        tuple((tuple(t.shape), t.dtype) for t in tensors),
        tuple(repr(value) for value in (*others, *leaves)),
    )
