"""Graphs and models that the tests share, in a module of its own so that workers can import it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATConv, GCNConv, GINConv, MessagePassing, global_add_pool
from torch_geometric.nn.models.schnet import CFConv, GaussianSmearing, ShiftedSoftplus

SIZES = ((4, 6), (7, 12), (3, 4), (6, 9), (2, 2), (5, 11))


def graph(nodes: int, edges: int, *, seed: int = 0) -> Data:
    """Random features, positions, edges (some are loops), and one of three labels."""
    draw = torch.Generator().manual_seed(1000 * nodes + edges + seed)
    return Data(
        x=torch.randn(nodes, 5, generator=draw),
        z=torch.randint(1, 9, (nodes,), generator=draw),
        pos=torch.randn(nodes, 3, generator=draw),
        edge_index=torch.randint(nodes, (2, edges), generator=draw),
        edge_attr=torch.randn(edges, 2, generator=draw),
        y=torch.randint(3, (1,), generator=draw),
    )


def graphs() -> list[Data]:
    return [graph(*size) for size in SIZES]


def hetero_graph(users: int, items: int, edges: int) -> HeteroData:
    draw = torch.Generator().manual_seed(users + 10 * items + 100 * edges)
    data = HeteroData()
    data["user"].x = torch.randn(users, 3, generator=draw)
    data["item"].x = torch.randn(items, 4, generator=draw)
    ends = (torch.randint(n, (edges,), generator=draw) for n in (users, items))
    data["user", "buys", "item"].edge_index = torch.stack(list(ends))
    data.y = torch.randint(2, (1,), generator=draw)
    return data


class Classifier(nn.Module):
    """Two convolutions, a sum over each graph, and the mean loss over real graphs."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.out = nn.Linear(8, 3)

    def forward(self, batch: Any, graphs: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.relu(self.first(batch.x, batch.edge_index))
        x = self.second(x, batch.edge_index)
        count = batch.num_graphs if graphs is None else graphs
        scores = self.out(global_add_pool(x, batch.batch, size=count))
        losses = F.cross_entropy(scores, batch.y, reduction="none")
        mask = batch.graphs_mask if "graphs_mask" in batch else torch.ones_like(batch.y)
        return scores, (losses * mask).sum() / mask.sum()


def gcn() -> Classifier:
    return Classifier(GCNConv(5, 8), GCNConv(8, 8))


def gcn_without_loops() -> Classifier:
    return Classifier(GCNConv(5, 8, add_self_loops=False), GCNConv(8, 8, add_self_loops=False))


def gin() -> Classifier:
    def layers(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 8))

    return Classifier(GINConv(layers(5)), GINConv(layers(8), train_eps=True))


def gat() -> Classifier:
    return Classifier(GATConv(5, 4, heads=2), GATConv(8, 8))


class SchNetLike(nn.Module):
    """Continuous-filter convolutions over given distances; an energy for each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.smearing = GaussianSmearing(0.0, 5.0, 6)
        filters = nn.Sequential(nn.Linear(6, 8), ShiftedSoftplus(), nn.Linear(8, 8))
        self.conv = CFConv(8, 8, 8, filters, 5.0)
        self.out = nn.Linear(8, 1)

    def edges(self, batch: Any) -> torch.Tensor:
        return batch.edge_index

    def forward(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        edge_index = self.edges(batch)
        start, end = edge_index
        distance = (batch.pos[start] - batch.pos[end]).norm(dim=-1)
        h = self.embedding(batch.z)
        h = h + self.conv(h, edge_index, distance, self.smearing(distance))
        energy = global_add_pool(self.out(h), batch.batch, size=batch.num_graphs).squeeze(-1)
        errors = (energy - batch.y.float()).square()
        mask = batch.graphs_mask if "graphs_mask" in batch else torch.ones_like(batch.y)
        return energy, (errors * mask).sum() / mask.sum()


class SchNetOfRadius(SchNetLike):
    """The edges are found in forward."""

    def edges(self, batch: Any) -> torch.Tensor:
        from torch_geometric.nn import radius_graph

        return radius_graph(batch.pos, 1.5, batch.batch)


class SumOfNeighbors(MessagePassing):
    """The plainest layer."""

    def __init__(self, aggr: str = "sum") -> None:
        super().__init__(aggr=aggr)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.propagate(edge_index, x=x)
