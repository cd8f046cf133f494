"""A model in stages gives the bits of the same model without annotations."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.pipeline.models import STRATEGIES, Case, same_bits

import poptorch

KINDS = ("cnn", "transformer", "tied")


def random_case(seed: int) -> Case:
    """Any configuration: 1 to 8 stages, G from 1 to 16, every strategy."""
    draw = random.Random(seed)
    return Case(
        kind=draw.choice(KINDS),
        stages=draw.randint(1, 8),
        accumulation=draw.randint(1, 16),
        strategy=draw.choice([*STRATEGIES, "pipelined"]),
        recompute=draw.choice(["", "option", "checkpoints"]),
        replicas=draw.choice([1, 1, 2, 3]),
        iterations=draw.choice([1, 1, 2]),
        seed=draw.choice([None, 7]),
        mode=draw.choice([poptorch.OutputMode.All, poptorch.OutputMode.Final]),
    )


def is_quick(case: Case) -> bool:
    """Recording a model takes nearly all of the time, and an attention layer has most nodes."""
    return case.kind != "transformer" or case.stages <= 2


QUICK = [seed for seed in range(40) if is_quick(random_case(seed))][:12]


@cache
def unannotated(case: Case, steps: int) -> list[torch.Tensor]:
    """What a case gives without annotations, trained once for all strategies."""
    return case.train(annotated=False, steps=steps)


def assert_equal_to_unannotated(case: Case, steps: int = 2) -> None:
    plain = unannotated(replace(case, strategy="pipelined", recompute=""), steps)

    assert same_bits(case.train(annotated=True, steps=steps), plain), case


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_pipeline_trains_to_the_bits_of_the_unannotated_model(kind, threads, monkeypatch):
    monkeypatch.setenv("PANTILE_PIPELINE_THREADS", threads)

    assert_equal_to_unannotated(Case(kind, stages=3, accumulation=6, replicas=2))


@pytest.mark.parametrize("recompute", ["option", "checkpoints"])
@pytest.mark.parametrize("kind", KINDS)
def test_recomputation_changes_no_bit(kind, recompute):
    assert_equal_to_unannotated(Case(kind, stages=3, accumulation=5, recompute=recompute, seed=3))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_trains_to_the_same_bits(strategy):
    assert_equal_to_unannotated(Case("transformer", 3, 6, strategy, replicas=2))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_infers_the_same_bits(strategy):
    for kind in KINDS:
        case = Case(kind, 3, strategy=strategy, iterations=4, replicas=2)

        assert same_bits(case.infer(annotated=True), case.infer(annotated=False))


@pytest.mark.parametrize("seed", QUICK)
def test_random_configurations_train_to_the_same_bits(seed):
    assert_equal_to_unannotated(random_case(seed), steps=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_many_random_configurations_train_to_the_same_bits(seed, monkeypatch):
    monkeypatch.setenv("PANTILE_PIPELINE_THREADS", str(1 + seed % 4))

    assert_equal_to_unannotated(random_case(seed))
