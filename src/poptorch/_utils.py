"""Private helpers that PyTorch-Geometric clients import."""

from collections.abc import Iterable, Iterator

import torch

from pantile.data.combine import join


def combine_batch_tensors_gen(batches: Iterable[Iterable[torch.Tensor]]) -> Iterator[torch.Tensor]:
    """Yield, for each position, the tensors of all batches joined along dim 0."""
    for column in zip(*batches, strict=True):
        yield join(column)


__all__ = ["combine_batch_tensors_gen"]
