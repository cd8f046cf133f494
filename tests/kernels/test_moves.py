"""No move of a vector minds where the stack lies: see src/pantile/lowering/moves.h."""

from __future__ import annotations

import platform
import shutil
import subprocess

import pytest
import torch
from tests.kernels.programs import graph_of, written
from torch.nn import functional as F

from pantile.lowering.compiler import find_compiler
from pantile.lowering.kernels.build import build
from pantile.lowering.kernels.source import sources

ALIGNED = r"""
typedef float vec __attribute__((vector_size(32)));
extern "C" void copy(vec* to, const vec* from) { *to = *from; }
"""
MOVES = ("vmovaps", "vmovapd", "vmovdqa", "vmovdqa32", "vmovdqa64")

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="moves of x86"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump"),
    pytest.mark.skipif("clang" in find_compiler(), reason="clang aligns the stack"),
]


def moves_of(library: bytes, folder) -> list[str]:
    path = folder / "program.so"
    path.write_bytes(library)
    done = subprocess.run(["objdump", "-d", path], capture_output=True, text=True, check=True)
    words = (line.split("\t")[-1].split() for line in done.stdout.splitlines())
    return [word[0] for word in words if word and word[0].startswith("vmov")]


def test_aligned_moves_are_written_as_unaligned_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("PANTILE_CPU", "x86-64-v3")
    found = moves_of(build([ALIGNED]), tmp_path)
    assert "vmovups" in found
    assert not set(found) & set(MOVES)


def test_a_training_step_has_no_aligned_move(tmp_path):
    def step(x, w, labels):
        with torch.enable_grad():
            loss, backward = torch.func.vjp(lambda w: F.cross_entropy(x @ w, labels), w)
        return loss, *backward(torch.ones(()))

    given = torch.randn(37, 19), torch.randn(19, 10), torch.randint(10, (37,))
    found = moves_of(build(sources(written(graph_of(step, given)), 2)), tmp_path)
    assert found
    assert not set(found) & set(MOVES)
