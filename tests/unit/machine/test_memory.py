"""What lies on an IPU, against sums done by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.unit.machine.records import Stack

import poptorch
from pantile.machine.advice import changes_for
from pantile.machine.memory import memory_of, stash_of, tile_map, verdict_of
from pantile.machine.optimizers import OptimizerModel
from pantile.machine.targets import BOW, pod
from pantile.machine.timing import Configuration
from pantile.machine.units import Parameter, Unit
from pantile.runtime.estimate import estimate_of

MB = 10**6


def unit(name: str, **sizes) -> Unit:
    return Unit(name, parameters=(Parameter(f"{name}.w", 10 * MB, 20 * MB),), **sizes)


STAGES = [
    [unit(f"layers.{i}", border_bytes=MB, saved_bytes=7 * MB, peak_bytes=9 * MB)] for i in range(3)
]
ADAM = Configuration(pod(BOW, 4), 1, 8, 2, optimizer=OptimizerModel("adam"))


def test_always_live_bytes_are_those_of_the_real_tensors():
    model = Stack(layers=3, width=16)
    optimizer = torch.optim.AdamW(model.parameters())
    options = poptorch.Options().engine("reference").showCompilationProgressBar(False)
    options.Training.gradientAccumulation(4)
    step = poptorch.trainingModel(model, options, optimizer=optimizer)
    step(torch.zeros(8, 16))

    (memory,) = estimate_of(step).memory

    state = [t for s in optimizer.state.values() for k, t in s.items() if k != "step"]
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    assert memory.weights == weights
    assert memory.accumulators == weights
    assert memory.optimizer_state == sum(t.numel() * t.element_size() for t in state)


def test_the_stash_holds_the_micro_batches_that_are_under_way():
    """Of P = 3 stages: 5, 3 and 1 of them."""
    keep = [stash_of(STAGES, i, ADAM) for i in range(3)]
    again = [stash_of(STAGES, i, replace(ADAM, recompute="stage")) for i in range(3)]

    assert keep == [5 * 7 * MB, 3 * (7 + 1) * MB, 1 * (7 + 1) * MB]
    assert again == [0, 3 * MB, (1 + 7) * MB]
    assert stash_of(STAGES, 0, replace(ADAM, training=False)) == 0


def test_state_is_shared_among_replicas_or_leaves_the_chip():
    plain, sharded, off = (
        memory_of(STAGES, replace(ADAM, **change))[0].optimizer_state
        for change in ({}, {"sharded_state": True}, {"state_off_chip": True})
    )

    assert plain == 10 * MB * 8
    assert sharded == plain // 2
    assert off == 10 * MB * 8  # room for the one tensor while it is updated


def test_no_accumulators_without_accumulation():
    once = memory_of(STAGES, replace(ADAM, accumulation=1))[0]

    assert once.accumulators == 0
    assert once.gradients == 20 * MB


def test_the_verdict_follows_the_fullest_tile():
    small = memory_of(STAGES, ADAM)
    full = [replace(small[0], stash=BOW.memory_bytes)]

    assert verdict_of(small, BOW) == "fits"
    assert verdict_of(full, BOW) == "does not fit"
    even = (small[0].total - small[0].fixed) / BOW.tiles
    assert small[0].fullest_tile(BOW) == pytest.approx(
        even * BOW.tile_imbalance + small[0].fixed / BOW.tiles
    )


def test_advice_is_ranked_by_what_it_frees_and_what_suffices_comes_first():
    heavy = [[replace(s[0], saved_bytes=400 * MB, temporary_bytes=500 * MB)] for s in STAGES]

    found = changes_for(heavy, ADAM)

    assert [c.enough for c in found] == sorted((c.enough for c in found), reverse=True)
    names = [c.what for c in found]
    assert "recompute activations" in names
    assert "shard the optimizer state" in names
    assert all(c.freed_bytes > 0 for c in found)


def test_a_tile_map_holds_every_byte_once():
    sizes = [128 * 10, 128 * 7, 128 * 100]

    found = tile_map(sizes, 16)

    assert found.sum() == pytest.approx(sum(sizes), abs=16 * len(sizes))
    assert np.all(found >= 128 * 100 // 16)


def test_a_small_tensor_lies_on_few_tiles():
    found = tile_map([256], 16)

    assert sorted(found.tolist()) == [0] * 14 + [128, 128]
