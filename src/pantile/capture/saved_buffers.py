"""Let a strict `forward` write to a buffer after a gradient has come to need its old value.

    x = self.layer(x) * self.scale     the gradient of the layer needs scale
    self.scale += 1                    eager: an error in backward

On a device gradients are derived from the recorded graph, where the old and the new value are two
tensors. So the old value of a buffer is kept for them. Any other tensor changed in place stays the
error it is in eager.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.autograd.graph import saved_tensors_hooks

OVERWRITTEN = "modified by an inplace operation"
"""What torch says when a gradient needs a value that is gone."""

Saved = tuple[torch.Tensor, int | None]


def keep_old_values(buffers: Iterable[torch.Tensor]) -> saved_tensors_hooks:
    """A context in which what autograd saves of these tensors is a copy."""
    storages = {_storage(buffer) for buffer in buffers}

    def pack(tensor: torch.Tensor) -> Saved:
        if _storage(tensor) in storages:
            return tensor.clone(), None
        return tensor, tensor._version

    return saved_tensors_hooks(pack, _unpack)


def _unpack(saved: Saved) -> torch.Tensor:
    tensor, version = saved
    if version is not None and tensor._version != version:
        raise RuntimeError(
            f"one of the variables needed for gradient computation has been {OVERWRITTEN}: "
            f"a tensor of shape {list(tensor.shape)}"
        )
    return tensor


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
