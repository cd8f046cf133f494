"""Tools for models."""

from pantile.geometric import TrainingStepper, set_aggregation_dim_size

__all__ = ["TrainingStepper", "set_aggregation_dim_size"]
