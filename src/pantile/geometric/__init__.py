"""PyTorch Geometric on Pantile: batches of one size, and layers with static shapes.

graphs ── packing ── collate (padding, trimming) ── loaders ──► Batch ── arguments ──► executor
                                                     model ── static (while it is captured) ──┘

Importing it makes executors and loaders understand PyG's data types. It needs `torch_geometric`.
"""

from pantile.geometric.arguments import PyGArgsParser, register_parsers
from pantile.geometric.collate import (
    CombinedBatchingCollater,
    FixedSizeCollater,
    make_exclude_keys,
)
from pantile.geometric.loaders import DataLoader, FixedSizeDataLoader
from pantile.geometric.maskers import (
    LayerMasker,
    Masker,
    NoMasker,
    PaddingMasker,
    PreLayerMasker,
)
from pantile.geometric.packing import StreamPackingSampler
from pantile.geometric.sizes import FixedSizeOptions, FixedSizeStrategy, OverSizeStrategy
from pantile.geometric.static.swaps import StaticShapes
from pantile.geometric.stepper import TrainingStepper, set_aggregation_dim_size
from pantile.geometric.subgraphs import FixedSizeClusterLoader, FixedSizeNeighborLoader
from pantile.runtime.substitution import register_substitution

register_parsers()
register_substitution(StaticShapes)

__all__ = [
    "CombinedBatchingCollater",
    "DataLoader",
    "FixedSizeClusterLoader",
    "FixedSizeCollater",
    "FixedSizeDataLoader",
    "FixedSizeNeighborLoader",
    "FixedSizeOptions",
    "FixedSizeStrategy",
    "LayerMasker",
    "Masker",
    "NoMasker",
    "OverSizeStrategy",
    "PaddingMasker",
    "PreLayerMasker",
    "PyGArgsParser",
    "StreamPackingSampler",
    "TrainingStepper",
    "make_exclude_keys",
    "set_aggregation_dim_size",
]
