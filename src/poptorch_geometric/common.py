"""The types of PyG's batches."""

from pantile.geometric.arguments import DataBatch, HeteroDataBatch

__all__ = ["DataBatch", "HeteroDataBatch"]
