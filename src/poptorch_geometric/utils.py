"""Tools for models, and the types of PyG's batches."""

from pantile.geometric import TrainingStepper, set_aggregation_dim_size
from pantile.geometric.arguments import DataBatch, HeteroDataBatch

__all__ = ["DataBatch", "HeteroDataBatch", "TrainingStepper", "set_aggregation_dim_size"]
