"""Put the static versions in place of PyG's while a model is captured.

A function may be bound to names anywhere (`from torch_geometric.nn import radius_graph`), so each
module that holds it under one of its names gets the other one. Outside a capture, and in threads
that capture nothing, the original is called.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from contextvars import Token
from types import TracebackType
from typing import Any

import torch
import torch_geometric
import torch_geometric.nn as pyg
from torch_geometric.experimental import experimental_mode
from torch_geometric.nn.aggr.base import Aggregation
from torch_geometric.nn.dense import HeteroLinear

from pantile.geometric.static import layers, loops, missing, neighbors
from pantile.geometric.static.missing import Capture, current

# Replacements that know how to do without the original …
_SEARCHES: dict[str, Callable[..., Any]] = {
    "knn": neighbors.knn,
    "knn_graph": neighbors.knn_graph,
    "radius": neighbors.radius,
    "radius_graph": neighbors.radius_graph,
    "nearest": neighbors.nearest,
}
# … and those that are given it, as their first argument.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": missing.softmax,
    "remove_self_loops": loops.remove_self_loops,
    "add_self_loops": loops.add_self_loops,
    "add_remaining_self_loops": loops.add_remaining_self_loops,
}
_ALIASES = {"add_self_loops": ("add_self_loops_fn",)}
# These search by the operator itself, with boundaries of batches; here batch numbers do as well.
_SEARCHING = ("edge_conv", "gravnet_conv", "x_conv")
_METHODS: tuple[tuple[type, str, Callable[..., Any]], ...] = (
    (pyg.MessagePassing, "_index_select", missing.index_select),
    (Aggregation, "__call__", missing.aggregate),
    (Aggregation, "assert_sorted_index", layers.assert_sorted_index),
    (pyg.ClusterGCNConv, "forward", layers.cluster_gcn_conv),
    (HeteroLinear, "forward", layers.hetero_linear),
    (pyg.MFConv, "forward", layers.mf_conv),
)


class StaticShapes:
    """A context in which PyG's functions have static shapes, for this thread."""

    def __init__(self) -> None:
        self._token: Token[Capture | None] | None = None

    def __enter__(self) -> StaticShapes:
        _installed.hold()
        self._token = current.set(Capture())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._token is not None
        current.reset(self._token)
        _installed.release()


class _Installed:
    """What is in place now; several captures may need it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._replaced: list[tuple[Any, str, Any]] = []
        self._mode: Any = None

    def hold(self) -> None:
        with self._lock:
            self._holders += 1
            if self._holders == 1:
                self._mode = experimental_mode("disable_dynamic_shapes")
                self._mode.__enter__()
                self._install()

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                for owner, name, original in reversed(self._replaced):
                    if original is None:
                        delattr(owner, name)
                    else:
                        setattr(owner, name, original)
                self._replaced.clear()
                self._mode.__exit__()

    def _install(self) -> None:
        for name, replacement in _SEARCHES.items():
            self._replace_function(getattr(pyg, name), (name,), _without_original(replacement))
        interpolate = _without_original(neighbors.knn_interpolate)
        self._replace_function(pyg.knn_interpolate, ("knn_interpolate",), interpolate)
        for name, replacement in _FUNCTIONS.items():
            names = (name, *_ALIASES.get(name, ()))
            self._replace_function(getattr(torch_geometric.utils, name), names, replacement)
        for owner, name, replacement in _METHODS:
            original = getattr(owner, name)
            self._replace(owner, name, original, _in_capture(original, replacement))
        original = getattr(torch.ops.pyg, "knn", None)
        self._replace(torch.ops.pyg, "knn", original, _in_capture(original, _search_operator))
        for name in _SEARCHING:
            module = sys.modules.get(f"torch_geometric.nn.conv.{name}")
            original = getattr(module, "index2ptr", None)
            if original is not None:
                self._replace(module, "index2ptr", original, _in_capture(original, _batch_numbers))

    def _replace_function(
        self, original: Any, names: tuple[str, ...], replacement: Callable[..., Any]
    ) -> None:
        substitute = _in_capture(original, replacement)
        for module in list(sys.modules.values()):
            held = getattr(module, "__dict__", {})
            for name in names:
                if held.get(name) is original:
                    self._replace(module, name, original, substitute)

    def _replace(self, owner: Any, name: str, original: Any, substitute: Any) -> None:
        self._replaced.append((owner, name, original))
        setattr(owner, name, substitute)


def _search_operator(
    original: Any, x: Any, y: Any, batch_x: Any, batch_y: Any, k: int, cosine: bool, workers: int
) -> Any:
    return neighbors.knn(x, y, k, batch_x, batch_y, cosine)


def _batch_numbers(original: Any, batch: Any, size: int | None = None) -> Any:
    return batch


def _without_original(replacement: Callable[..., Any]) -> Callable[..., Any]:
    return lambda original, *args, **kwargs: replacement(*args, **kwargs)


def _in_capture(original: Any, replacement: Callable[..., Any]) -> Any:
    @functools.wraps(replacement if original is None else original)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        if current.get() is None:
            return original(*args, **kwargs)
        return replacement(original, *args, **kwargs)

    return chosen


_installed = _Installed()
