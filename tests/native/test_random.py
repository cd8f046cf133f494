"""Random numbers of compiled programs: right rates, the same bits for the same seed."""

from __future__ import annotations

import hashlib
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.native.runs import Dropped, batch, momentum, options, run_script, runs_natively, seeded
from torch import nn

import poptorch

WIDTH = 512


class Noisy(nn.Module):
    """A layer behind dropout, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        out = self.layer(F.dropout(x, 0.5))
        return out, F.cross_entropy(out, labels)


def dropped(seed: int | None = None, **setters: Any) -> poptorch.PoplarExecutor:
    """An inference executor whose next call runs natively."""
    chosen = options(**setters) if seed is None else options(randomSeed=seed, **setters)
    model = poptorch.inferenceModel(Dropped(), chosen)
    model(ones(setters))
    return model


def ones(setters: Any) -> torch.Tensor:
    parts = setters.get("deviceIterations", 1) * setters.get("replicationFactor", 1)
    return torch.ones(parts, WIDTH)


def test_elements_are_kept_at_their_rate_and_scaled() -> None:
    model = dropped(seed=3, deviceIterations=200)

    out = model(torch.ones(200, WIDTH))

    assert runs_natively(model)
    assert out.unique().tolist() == pytest.approx([0.0, 4 / 3])
    kept, draws = (out > 0).double(), 200 * WIDTH
    assert abs(kept.mean() - 0.75) < 4 * sqrt(0.75 * 0.25 / draws)
    for dim, places in ((0, WIDTH), (1, 200)):
        spread = kept.mean(dim).var() * draws / places
        assert spread == pytest.approx(0.75 * 0.25, rel=0.5)


def test_no_two_micro_batches_have_the_same_mask() -> None:
    model = dropped(seed=3, deviceIterations=3, replicationFactor=2)

    masks = [mask for _ in range(3) for mask in model(torch.ones(6, WIDTH))]

    assert runs_natively(model)
    assert len({tuple(mask.tolist()) for mask in masks}) == 18


def test_the_same_seed_gives_the_same_bits_and_another_one_others() -> None:
    one, same, other = dropped(seed=3), dropped(seed=3), dropped(seed=4)
    x = torch.ones(1, WIDTH)

    first, second = one(x), one(x)

    assert torch.equal(same(x), first)
    assert torch.equal(same(x), second)
    assert not torch.equal(other(x), first)
    assert not torch.equal(first, second)


def test_without_a_seed_manual_seed_decides() -> None:
    model = dropped()
    x = torch.ones(1, WIDTH)

    torch.manual_seed(5)
    first, second = model(x), model(x)
    torch.manual_seed(5)

    assert torch.equal(model(x), first)
    assert torch.equal(model(x), second)
    assert not torch.equal(first, second)


def test_a_seeded_model_leaves_torchs_generator_alone() -> None:
    model = dropped(seed=3)
    before = torch.get_rng_state()

    model(torch.ones(1, WIDTH))

    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("seed", [None, 3])
def test_a_saved_state_resumes_exactly(seed: int | None) -> None:
    model = dropped(seed, deviceIterations=2, replicationFactor=2)
    x = torch.ones(4, WIDTH)
    model(x)
    state = model.rng_state
    expected = [model(x), model(x)]

    model.rng_state = state

    assert all(torch.equal(model(x), out) for out in expected)


def test_a_state_counts_micro_batches_whichever_engine_ran_them() -> None:
    model = dropped(seed=3, deviceIterations=2, replicationFactor=2)
    assert model.rng_state == [3, 2, 2]

    model(torch.ones(4, WIDTH))

    assert model.rng_state == [3, 4, 4]


def test_splitting_a_run_into_calls_does_not_change_it() -> None:
    """A micro-batch has its number, in however many calls the numbers are reached."""
    together, apart = dropped(seed=3, deviceIterations=4), dropped(seed=3, deviceIterations=2)
    apart(torch.ones(2, WIDTH))

    out = together(torch.ones(4, WIDTH))

    assert torch.equal(torch.cat([apart(torch.ones(2, WIDTH)) for _ in range(2)]), out)


def trained_bits() -> str:
    """A digest of a training run with dropout."""
    model = seeded(Noisy)
    chosen = options(randomSeed=3, deviceIterations=2, replicationFactor=2)
    step = poptorch.trainingModel(model, chosen, momentum(model.parameters()))
    for number in range(4):
        step(*batch(4, seed=number))
    assert runs_natively(step)
    values = torch.cat([p.detach().flatten() for p in model.parameters()])
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()


def test_a_saved_run_goes_on_with_the_masks_it_would_have_drawn(tmp_path: Path) -> None:
    model = seeded(Noisy)
    chosen = options(randomSeed=3, deviceIterations=2, replicationFactor=2)
    step = poptorch.trainingModel(model, chosen, momentum(model.parameters()))
    for number in range(2):
        step(*batch(4, seed=number))
    step.save(tmp_path / "file")

    loaded = poptorch.load(tmp_path / "file")

    for number in range(2, 5):
        assert torch.equal(loaded(*batch(4, seed=number))[0], step(*batch(4, seed=number))[0])
    assert loaded.rng_state == step.rng_state


PRINT_BITS = """
import torch
torch.set_num_threads(1)
from tests.native.test_random import trained_bits
print(trained_bits())
"""


def test_two_processes_train_to_the_same_bits() -> None:
    here = trained_bits()

    there = run_script(PRINT_BITS, PYTHONHASHSEED="12345").strip()

    assert there == here
