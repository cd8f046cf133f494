"""`PyGArgsParser`: graphs and batches of PyG as arguments of a model, and as items of a loader.

A graph is the tensors it holds, in the order of their names. What is not a tensor does not get
into a compiled program and is left out; the numbers of nodes and graphs stay known. Those of a
batch that is joined of several are the numbers of one of them, which is what a model sees.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.data import BaseData

from pantile.program.structure import ICustomArgParser, register_parser

# PyG makes these classes when it first needs them.
DataBatch = type(Batch(_base_cls=Data))
HeteroDataBatch = type(Batch(_base_cls=HeteroData))


class PyGArgsParser(ICustomArgParser):
    """Takes `Data`, `HeteroData` and batches of them apart."""

    def yieldTensors(self, struct: Any) -> Iterator[torch.Tensor]:
        """The tensors of all stores, by name within each."""
        for store in struct.stores:
            for name in _tensor_names(store):
                yield store[name]

    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]) -> Any:
        """A graph of the same kind with other tensors."""
        built = copy.copy(original_structure)  # a subclass may want arguments to be made anew
        for store in built.stores:
            names = _tensor_names(store)
            for name in list(store.keys()):
                if name not in names and name != "num_nodes":
                    del store[name]
            for name in names:
                store[name] = next(tensor_iterator)
        if isinstance(built, Batch):
            _keep_node_counts(original_structure, built)
        for boundaries in ("_slice_dict", "_inc_dict"):  # of the graphs the batch was made of
            built.__dict__.pop(boundaries, None)
        return built


def _keep_node_counts(original: Any, built: Any) -> None:
    """Batches that are joined have more rows than nodes: say how many nodes each of them has."""
    for before, store in zip(original.node_stores, built.node_stores, strict=True):
        if before.can_infer_num_nodes and 0 < before.num_nodes < store.num_nodes:
            store.num_nodes = before.num_nodes


def _tensor_names(store: Any) -> list[str]:
    return sorted(name for name, value in store.items() if isinstance(value, torch.Tensor))


def register_parsers() -> None:
    """Let executors and loaders know PyG's types."""
    register_parser(BaseData, PyGArgsParser())


__all__ = ["DataBatch", "HeteroDataBatch", "PyGArgsParser", "register_parsers"]
