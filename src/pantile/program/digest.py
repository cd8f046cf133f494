"""The digest of a tensor: what a text form says in place of a large constant."""

from __future__ import annotations

import ctypes
import hashlib

import torch

from pantile.program.spec import TensorSpec


def digest_of(tensor: torch.Tensor) -> str:
    """`sha256:` and the digest of dtype, shape and bytes (in the order of the indices)."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    size = plain.numel() * plain.element_size()
    content = (ctypes.c_char * size).from_address(plain.data_ptr()) if size else b""
    digest = hashlib.sha256(f"{TensorSpec.of(plain)}\n".encode())
    digest.update(content)
    return f"sha256:{digest.hexdigest()}"
