"""Weights that inference packs once for many calls: who may have changed them?

torch, in place         counts versions: `add_`, `copy_`, load_state_dict, optimizers
our training            loop.cpp counts its runs
new memory              the runner is made anew
`.data`, numpy          the program compares a sample of the numbers (program_end.h)
another process         cannot be seen: tensors in shared memory are packed at every call
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from pantile.runtime.native.plan import Input, State


def watched(inputs: Iterable[Input]) -> tuple[torch.Tensor, ...]:
    """The tensors of constant inputs; none if one of them can change unseen."""
    tensors = [t for given in inputs if isinstance(given, State) for t in given.tensors]
    return tuple(tensors) if all(map(can_be_watched, tensors)) else ()


def can_be_watched(tensor: torch.Tensor) -> bool:
    """Does torch count what is written to it, and is it only this process that can write?"""
    is_shared: bool = tensor.is_shared()  # type: ignore[no-untyped-call]
    return not tensor.is_inference() and not is_shared


def version_of(tensors: Sequence[torch.Tensor]) -> int:
    """A number that grows with every write to one of the tensors; 0 if none is watched."""
    return 1 + sum(tensor._version for tensor in tensors) if tensors else 0
