"""The engines that are compared, one file for each project.

    eager      PyTorch without a compiler: default and fused optimizer, channels-last
    compiled   torch.compile of the model, and of the whole step
    jax        jit with donated buffers, and a scan of 8 steps
    lightning  Lightning's own training loop
    paddle     Paddle's CPU executor, with its own LeNet, in a process of its own
    onnx       ONNX Runtime, inference only
    pantile    this project, one step a call and eight steps a call

A file is imported only when its engines are asked for: most need packages that may be missing.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from benchmarks.peers.peer import Engine, Peer, Settings

__all__ = ["FAMILIES", "Engine", "Peer", "Settings", "load"]

FAMILIES = ("eager", "compiled", "jax", "lightning", "paddle", "onnx", "pantile")


def load(families: Iterable[str], settings: Settings) -> list[Peer]:
    """The peers of these families, in the order of `FAMILIES`."""
    wanted = set(families)
    return [
        peer
        for family in FAMILIES
        if family in wanted
        for peer in importlib.import_module(f"benchmarks.peers.{family}").peers(settings)
    ]
