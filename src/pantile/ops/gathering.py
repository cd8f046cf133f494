"""`FastGatherLastDim`: a custom op that scripts find registered, because PopTorch's package has it.

    data  [2, 3, 5]  ┐
    index [2, 3, 4]  ┴─>  [2, 3, 4]   result[a, b, c] = data[a, b, index[a, b, c]]

It is `torch.gather` on the last dimension, for indices that have every other dimension of the data.
"""

from __future__ import annotations

import torch

from pantile.errors import OperandError


def gather_last_dim(data: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Elements of `data` along its last dimension; all other dimensions are those of `index`."""
    if index.dim() != data.dim() or index.shape[:-1] != data.shape[:-1]:
        raise OperandError(
            f"FastGatherLastDim: index has shape {tuple(index.shape)}, data {tuple(data.shape)}; "
            "all but the last dimension have to be the same",
            fix="expand the index, or use torch.gather(data, -1, index)",
        )
    return torch.gather(data, -1, index)
