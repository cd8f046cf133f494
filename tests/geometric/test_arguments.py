from __future__ import annotations

import importlib

import torch
from tests.geometric.graphs import graph, graphs, hetero_graph
from torch.testing import assert_close
from torch_geometric.data import Batch, Data, HeteroData

import poptorch
import poptorch_geometric
from poptorch_geometric import PyGArgsParser


def test_tensors_come_in_the_order_of_their_names():
    item = graph(4, 6)

    tensors = list(PyGArgsParser().yieldTensors(item))

    names = ["edge_attr", "edge_index", "pos", "x", "y", "z"]
    assert all(tensor is item[name] for tensor, name in zip(tensors, names, strict=True))


def test_a_batch_is_built_again_with_other_tensors():
    batch = Batch.from_data_list(graphs())
    parser = PyGArgsParser()
    others = [tensor + 1 for tensor in parser.yieldTensors(batch)]

    built = parser.reconstruct(batch, iter(others))

    assert type(built) is type(batch) and built is not batch
    assert_close(built.x, batch.x + 1)
    assert (built.num_graphs, built.num_nodes, built.num_edges) == (
        batch.num_graphs,
        batch.num_nodes,
        batch.num_edges,
    )
    assert_close(batch.x, Batch.from_data_list(graphs()).x)


def test_what_is_no_tensor_is_left_out_but_the_number_of_nodes():
    item = Data(edge_index=torch.zeros(2, 3).long(), num_nodes=9, name="ring")
    parser = PyGArgsParser()

    built = parser.reconstruct(item, parser.yieldTensors(item))

    assert built.num_nodes == 9
    assert "name" not in built


def test_typed_graphs_keep_their_types():
    item = hetero_graph(2, 3, 4)
    parser = PyGArgsParser()

    built = parser.reconstruct(item, parser.yieldTensors(item))

    assert isinstance(built, HeteroData)
    assert (built.node_types, built.edge_types) == (item.node_types, item.edge_types)
    assert_close(built["item"].x, item["item"].x)


class Doubling(torch.nn.Module):
    def forward(self, batch):
        batch.x = 2 * batch.x
        return batch


def test_a_model_takes_and_returns_graphs():
    batch = Batch.from_data_list(graphs())

    result = poptorch.inferenceModel(Doubling())(batch)

    assert isinstance(result, Batch)
    assert_close(result.x, 2 * Batch.from_data_list(graphs()).x)


def test_every_module_scripts_import_from_is_there():
    modules = {
        "cluster_loader": ["FixedSizeClusterLoader"],
        "collate": ["CombinedBatchingCollater", "FixedSizeCollater", "make_exclude_keys"],
        "dataloader": [
            "DataLoader",
            "FixedSizeDataLoader",
            "FixedSizeStrategy",
            "OverSizeStrategy",
        ],
        "fixed_size_options": ["FixedSizeOptions"],
        "masker": ["LayerMasker", "Masker", "NoMasker", "PreLayerMasker"],
        "neighbor_loader": ["FixedSizeNeighborLoader"],
        "pyg_dataloader": ["FixedSizeStrategy", "OverSizeStrategy"],
        "stream_packing_sampler": ["StreamPackingSampler"],
        "types": ["PyGArgsParser"],
        "utils": ["TrainingStepper", "set_aggregation_dim_size"],
    }

    for module, names in modules.items():
        found = __import__(f"poptorch_geometric.{module}", fromlist=names)
        for name in names:
            assert getattr(found, name) is getattr(poptorch_geometric, name)


def test_names_that_only_their_module_has_are_there():
    modules = {
        "common": ["DataBatch", "HeteroDataBatch"],
        "masker": ["Entries", "Layer", "Mask"],
        "neighbor_loader": ["PyGFixedSizeNeighborLoader"],
        "ops": ["knn", "knn_graph", "knn_interpolate", "nearest", "radius", "radius_graph"],
        "ops.radius": ["radius", "radius_graph"],
        "pyg_cluster_loader": ["FixedSizeClusterLoader"],
        "pyg_collate": ["Collater"],
        "pyg_dataloader": ["DataLoader", "FixedSizeDataLoader"],
        "types": ["registerCustomArgParsers"],
        "utils": ["DataBatch", "HeteroDataBatch"],
    }

    for module, names in modules.items():
        found = importlib.import_module(f"poptorch_geometric.{module}")
        assert set(names) <= set(vars(found)), module


def test_batches_are_told_apart_by_their_types():
    common = importlib.import_module("poptorch_geometric.common")

    assert type(Batch.from_data_list([graph(2, 3)])) is common.DataBatch
    assert type(Batch.from_data_list([hetero_graph(2, 3, 4)])) is common.HeteroDataBatch
