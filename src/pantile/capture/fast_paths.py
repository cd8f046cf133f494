"""nn.MultiheadAttention and nn.TransformerEncoder choose their kernel as they do in eager mode.

They ask three questions whose answer is another one while forward is recorded:

    has a tensor argument a torch function?    yes, because of our modes     answered with no
    does make_fx trace?                        yes                           answered with no
    is this mask the causal one?               its value is not known        looked up, and checked

For the last one the value of the mask is computed from the arguments of the call that is being
compiled; the graph checks that later masks have the same answer. All of it applies to the
recording thread only (`current()` tells).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, overrides
from torch._subclasses import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.nn.modules import activation, transformer
from torch.utils._python_dispatch import _disable_current_modes

from pantile.ops.context import current

_CHOOSERS = (activation.__name__, transformer.__name__)
_CHANGED = (
    "the attention mask is causal in one call and not in another: pass is_causal=True or False"
)


@contextmanager
def fast_paths(inputs: Sequence[Tensor]) -> Iterator[None]:
    """Answer as in eager mode; `inputs` are the real tensors behind the graph's placeholders."""
    asked, traced = overrides.has_torch_function, activation._is_make_fx_tracing
    detect = transformer._detect_is_causal_mask

    def has_torch_function(tensors: Any) -> bool:
        if current() is not None and sys._getframe(1).f_globals["__name__"] in _CHOOSERS:
            return False
        return bool(asked(tensors))

    def is_make_fx_tracing() -> bool:
        return current() is None and bool(traced())  # type: ignore[no-untyped-call]

    def detect_is_causal_mask(
        mask: Tensor | None, is_causal: bool | None = None, size: int | None = None
    ) -> bool:
        value = None
        if current() is not None and is_causal is None and isinstance(mask, FakeTensor):
            value = _value_now(mask, inputs)
        if mask is None or value is None:
            return detect(mask, is_causal, size)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            taken = detect(value, is_causal, size)
        _check_in_graph(mask, size, taken=taken)
        return taken

    overrides.has_torch_function = has_torch_function  # type: ignore[assignment]
    activation._is_make_fx_tracing = is_make_fx_tracing
    transformer._detect_is_causal_mask = detect_is_causal_mask
    try:
        yield
    finally:
        overrides.has_torch_function = asked
        activation._is_make_fx_tracing = traced
        transformer._detect_is_causal_mask = detect


def _check_in_graph(mask: Tensor, size: int | None, *, taken: bool) -> None:
    length = mask.size(-2) if size is None else size
    causal = transformer._generate_square_subsequent_mask(
        length, device=mask.device, dtype=mask.dtype
    )
    if mask.size() == causal.size():
        same = (mask == causal).all()
        torch._assert_async(same if taken else same.logical_not(), _CHANGED)


def _value_now(tensor: Tensor, inputs: Sequence[Tensor]) -> Tensor | None:
    """The value of a recorded tensor for the real inputs, if ops without effects computed it."""
    mode: Any = get_proxy_mode()
    if mode is None:
        return None
    node = get_proxy_slot(tensor, mode.tracer, None, lambda slot: slot.proxy.node)
    if not isinstance(node, fx.Node):
        return None
    needed = _ancestors(node)
    if not _is_pure(node.graph, needed):
        return None
    placeholders = node.graph.find_nodes(op="placeholder")
    known: dict[fx.Node, Any] = dict(zip(placeholders, inputs, strict=False))
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        for step in node.graph.nodes:
            if step in needed and step not in known:
                known[step] = _compute(step, known, mode.tracer.root)
    found: Tensor = known[node]
    return found


def _ancestors(node: fx.Node) -> set[fx.Node]:
    needed: set[fx.Node] = set()
    pending = [node]
    while pending:
        current_node = pending.pop()
        if current_node not in needed:
            needed.add(current_node)
            pending += current_node.all_input_nodes
    return needed


def _is_pure(graph: fx.Graph, needed: set[fx.Node]) -> bool:
    """True if nothing random is needed, and no other node writes to the memory of what is."""
    if any(torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()) for n in needed):
        return False
    memory = {_memory(node) for node in needed} - {None}
    return not any(
        _memory(node) in memory for node in graph.nodes if _writes(node) and node not in needed
    )


def _writes(node: fx.Node) -> bool:
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _memory(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else None


def _compute(node: fx.Node, known: dict[fx.Node, Any], root: Any) -> Any:
    if node.op == "get_attr":
        return getattr(root, str(node.target))
    args: Any = fx.map_arg(node.args, known.__getitem__)
    if _writes(node):
        args = (args[0].clone(), *args[1:])
    return node.target(*args, **fx.map_arg(node.kwargs, known.__getitem__))  # type: ignore[operator]
