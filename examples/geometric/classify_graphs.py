"""Tell rings, stars and trees apart: a graph network on batches of one size.

    python classify_graphs.py                 eight epochs
    python classify_graphs.py --epochs 3 --pad

The graphs are made here, of 5 to 20 nodes that know only their number of neighbours. Batches are
packed: as many graphs as fit; with --pad every batch has room for the largest. A call of the
compiled model does two updates, for two batches each.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GINConv, global_mean_pool

import poptorch
from poptorch_geometric import FixedSizeDataLoader, FixedSizeOptions, FixedSizeStrategy

WIDTH, GRAPHS = 32, 16


def make_graph(kind: int, nodes: int) -> Data:
    """A ring, a star, or a random tree, its nodes numbered at random."""
    following = torch.arange(1, nodes)
    anyone_before = (torch.rand(nodes - 1) * following).long()
    before = [following - 1, torch.zeros_like(following), anyone_before]
    pairs = torch.stack([before[kind], following])
    if kind == 0:
        pairs = torch.cat([pairs, torch.tensor([[nodes - 1], [0]])], dim=1)
    pairs = torch.randperm(nodes)[pairs]
    edge_index = torch.cat([pairs, pairs.flip(0)], dim=1)
    degree = torch.bincount(edge_index[0], minlength=nodes)
    return Data(x=degree.float().unsqueeze(1), edge_index=edge_index, y=torch.tensor([kind]))


def make_dataset(count: int) -> list[Data]:
    """As many graphs of each kind."""
    sizes = torch.randint(5, 21, (count,)).tolist()
    return [make_graph(index % 3, nodes) for index, nodes in enumerate(sizes)]


class Network(nn.Module):
    """Two graph isomorphism layers, and the mean loss over the graphs that are no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GINConv(self._layers(1))
        self.second = GINConv(self._layers(WIDTH))
        self.out = nn.Linear(WIDTH, 3)

    @staticmethod
    def _layers(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, batch: Data) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.relu(self.first(batch.x, batch.edge_index))
        x = F.relu(self.second(x, batch.edge_index))
        scores = self.out(global_mean_pool(x, batch.batch, size=batch.num_graphs))
        losses = F.cross_entropy(scores, batch.y, reduction="none")
        loss = (losses * batch.graphs_mask).sum() / batch.graphs_mask.sum()
        return scores, poptorch.identity_loss(loss, reduction="none")


def load(
    graphs: list[Data], options: poptorch.Options, *, pad: bool, shuffle: bool
) -> FixedSizeDataLoader:
    """Batches of 16 graphs, one of them padding."""
    if pad:
        return FixedSizeDataLoader(graphs, batch_size=GRAPHS, shuffle=shuffle, options=options)
    average = sum(graph.num_nodes for graph in graphs) / len(graphs)
    return FixedSizeDataLoader(
        graphs,
        batch_size=GRAPHS,
        shuffle=shuffle,
        fixed_size_options=FixedSizeOptions(
            num_nodes=int(GRAPHS * average), num_edges=2 * int(GRAPHS * average), num_graphs=GRAPHS
        ),
        fixed_size_strategy=FixedSizeStrategy.StreamPack,
        options=options,
    )


def filled(loader: FixedSizeDataLoader) -> float:
    """The share of nodes that are real."""
    masks = [batch.nodes_mask for batch in loader]
    return float(torch.cat(masks).float().mean())


def accuracy(model: Network, loader: FixedSizeDataLoader) -> float:
    """The share of graphs that are told right."""
    options = poptorch.Options()
    executor = poptorch.inferenceModel(model, options)
    right = total = 0
    for batch in loader:
        scores, _ = executor(batch)
        right += int(((scores.argmax(dim=1) == batch.y) & batch.graphs_mask).sum())
        total += int(batch.graphs_mask.sum())
    return right / total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--pad", action="store_true", help="do not pack")
    given = parser.parse_args()
    torch.manual_seed(0)
    options = poptorch.Options().deviceIterations(2)
    options.Training.gradientAccumulation(2)
    train = load(make_dataset(960), options, pad=given.pad, shuffle=True)
    test = load(make_dataset(240), poptorch.Options(), pad=given.pad, shuffle=False)
    print(f"{filled(train):.0%} of the nodes in training batches are real")
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    executor = poptorch.trainingModel(model, options, optimizer)
    for epoch in range(1, given.epochs + 1):
        losses = [executor(batch)[1].mean() for batch in train]
        print(f"epoch {epoch}: loss {torch.stack(losses).mean():.3f}")
    print(f"{accuracy(model, test):.1%} of the test graphs are told right")


if __name__ == "__main__":
    main()
