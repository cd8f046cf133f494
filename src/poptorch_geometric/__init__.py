"""What `import poptorch_geometric` finds: PyTorch Geometric on Pantile."""

from pantile.geometric import (
    CombinedBatchingCollater,
    DataLoader,
    FixedSizeClusterLoader,
    FixedSizeCollater,
    FixedSizeDataLoader,
    FixedSizeNeighborLoader,
    FixedSizeOptions,
    FixedSizeStrategy,
    LayerMasker,
    Masker,
    NoMasker,
    OverSizeStrategy,
    PaddingMasker,
    PreLayerMasker,
    PyGArgsParser,
    StreamPackingSampler,
    TrainingStepper,
    make_exclude_keys,
    set_aggregation_dim_size,
)

__version__ = "3.4.0"  # the version of the interface

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
    "__version__",
    "make_exclude_keys",
    "set_aggregation_dim_size",
]
