"""Stages on threads: they run at the same time, and fail without hanging."""

from __future__ import annotations

import threading

import pytest
import torch
from tests.pipeline.models import Case
from torch import nn

import poptorch
from pantile.runtime.pipeline.crew import run_schedule
from pantile.runtime.pipeline.edges import Job
from poptorch import Block

MEETING = threading.Barrier(2)


@torch.library.custom_op("pantile_tests::meet", mutates_args=())
def meet(x: torch.Tensor, column: int) -> torch.Tensor:
    """Wait for the other stage if the sample says so; break if it says that."""
    if x[0, column] == 1:
        MEETING.wait(timeout=60)
    if x[0, column] == 2:
        raise ValueError("this micro-batch is bad")
    return x.clone()


@meet.register_fake
def _same(x, column):
    return torch.empty_like(x)


class Meeting(nn.Module):
    def forward(self, x):
        with Block("a", ipu_id=0):
            x = meet(x, 0) + 0
        with Block("b", ipu_id=1):
            return meet(x, 1) + 0


def executor(iterations: int):
    options = poptorch.Options().deviceIterations(iterations).showCompilationProgressBar(False)
    return poptorch.inferenceModel(Meeting(), options)


def test_two_stages_run_at_the_same_time(monkeypatch):
    monkeypatch.setenv("PANTILE_PIPELINE_THREADS", "2")
    # Micro-batch 1 on stage 0 waits for micro-batch 0 on stage 1. In any order but side by side
    # one of them would wait for a minute, and break the barrier.
    x = torch.tensor([[0.0, 1.0], [1.0, 0.0]])

    assert torch.equal(executor(2)(x), x)


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("column", [0, 1])
def test_an_error_in_a_stage_is_raised_and_the_next_call_works(threads, column, monkeypatch):
    monkeypatch.setenv("PANTILE_PIPELINE_THREADS", threads)
    run, x = executor(4), torch.zeros(4, 2)
    bad = x.clone()
    bad[1, column] = 2
    before = threading.active_count()

    with pytest.raises(ValueError, match="this micro-batch is bad") as error:
        run(bad)

    assert isinstance(error.value, poptorch.Error)
    assert threading.active_count() == before
    assert torch.equal(run(x), x)


def test_the_number_of_threads_must_be_a_number(monkeypatch):
    monkeypatch.setenv("PANTILE_PIPELINE_THREADS", "many")

    with pytest.raises(poptorch.Error, match="PANTILE_PIPELINE_THREADS is 'many'"):
        executor(2)(torch.zeros(2, 2))


@pytest.mark.parametrize("strategy", ["pipelined", "sharded"])
def test_activations_are_held_no_longer_than_the_schedule_needs_them(strategy):
    case = Case("tied", stages=3, accumulation=12, strategy=strategy)
    model, shape = case.model(annotated=True)
    executor = poptorch.trainingModel(model, case.options(annotated=True))
    x = torch.ones(24, *shape)
    executor.compile(x, x)
    compiled = executor._compiled[0]
    values = compiled.values(executor._weights, [x[:2], x[:2]], 0)
    held = []
    jobs = [Job(values, lambda *_: held.append(sum(bool(job.edges) for job in jobs)))]
    jobs += [Job(values, jobs[0].deliver) for _ in range(11)]

    run_schedule(compiled.pipeline, compiled.pipeline.schedule(12), jobs)

    # A micro-batch is in the pipeline for 2F - 1 cycles, and between shards for one.
    assert max(held) == (5 if strategy == "pipelined" else 1)
    assert not any(job.edges for job in jobs)
