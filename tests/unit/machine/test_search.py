"""Plans: balanced, within the pod, with the batch that was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.unit.machine.records import Stack, stack_record

from pantile.errors import Error
from pantile.machine.batches import for_any_batch
from pantile.machine.cost import CostSettings
from pantile.machine.optimizers import OptimizerModel
from pantile.machine.plan_text import annotations_of, as_data, table
from pantile.machine.search import plans_for
from pantile.machine.targets import BOW, pod
from pantile.machine.timing import Configuration
from pantile.machine.units import Parameter, Unit, units_of
from pantile.planning import plan

BASE = Configuration(pod(BOW, 8), 2, optimizer=OptimizerModel("adam"))
UNITS = [
    Unit(
        f"layers.{i}", forward=1e6, backward=2e6, parameters=(Parameter(f"{i}", 10**6, 2 * 10**6),)
    )
    for i in range(12)
]


def test_equal_units_are_cut_into_equal_stages():
    found = plans_for(UNITS, BASE, batch=512, stage_counts=[4], recompute=("none",))

    assert [len(stage) for stage in found[0].stages] == [3, 3, 3, 3]
    assert found[0].timing.balance == pytest.approx(1.0, abs=0.02)


def test_a_dear_unit_gets_a_stage_of_its_own():
    dear = [replace(UNITS[0], forward=2e7, backward=4e7), *UNITS[1:]]

    found = plans_for(dear, BASE, batch=512, stage_counts=[2], recompute=("none",))

    assert [len(stage) for stage in found[0].stages] == [1, 11]


def test_the_batch_is_kept_and_the_pod_not_exceeded():
    for found in plans_for(UNITS, BASE, batch=1024):
        chosen = found.configuration
        assert chosen.samples == 1024
        assert found.ipus <= 8
        assert chosen.accumulation >= 2 * len(found.stages) - 1
        assert [u.name for stage in found.stages for u in stage] == [u.name for u in UNITS]


def test_more_weights_than_one_chip_holds_means_more_stages():
    heavy = [replace(u, parameters=(Parameter(u.name, 30 * 10**6, 60 * 10**6),)) for u in UNITS]

    best = plans_for(heavy, BASE, batch=1024)[0]

    assert best.fits
    assert len(best.stages) > 1


def test_what_fits_nowhere_is_said_not_to_fit():
    huge = [replace(u, parameters=(Parameter(u.name, 10**9, 2 * 10**9),)) for u in UNITS]

    assert not plans_for(huge, BASE, batch=1024)[0].fits


def test_64_stages_are_possible():
    units = [replace(UNITS[0], name=f"layers.{i}") for i in range(80)]

    found = plans_for(units, replace(BASE, system=pod(BOW, 64)), batch=4096, stage_counts=[64])

    assert len(found[0].stages) == 64
    assert all(stage for stage in found[0].stages)


def test_a_batch_too_small_for_the_pipeline_is_an_error():
    with pytest.raises(Error, match="too small"):
        plans_for(UNITS, BASE, batch=4, stage_counts=[4])


def test_annotations_begin_blocks_where_stages_begin():
    found = plans_for(UNITS, BASE, batch=512, stage_counts=[3], recompute=("layer",))[0]

    text = annotations_of(found)

    assert 'poptorch.BeginBlock(model.layers[4], "stage1", ipu_id=1)' in text
    assert 'poptorch.BeginBlock(model.layers[8], "stage2", ipu_id=2)' in text
    assert "for layer in model.layers:" in text
    compile(text, "annotations", "exec")
    assert as_data(found)["annotations"] == text
    assert "3 stages x 2 replicas" in table(found)


def test_annotations_run_and_place_the_model_as_planned():
    import poptorch

    model = Stack(layers=6, width=16)
    best = plan(model, (torch.zeros(2, 16),), ipus=2, batch=64, optimizer="sgd")
    two = next(
        p
        for p in plans_for([u for s in best.stages for u in s], best.configuration, batch=64)
        if len(p.stages) == 2
    )
    names = {"model": model}
    exec(annotations_of(two), names)
    options = names["options"].engine("reference").showCompilationProgressBar(False)
    options.Training.gradientAccumulation(4)
    step = poptorch.trainingModel(model, options)
    step.compile(torch.zeros(4 * 2 * options.replication_factor, 16))

    assert step._compiled[0].placement.ipus_per_replica == 2


def test_records_for_another_batch_are_those_a_capture_gives():
    between = for_any_batch(stack_record(batch=8), 8, stack_record(batch=16), 16)

    assert between(4).tensors == stack_record(batch=4).tensors


def test_other_ops_for_another_batch_are_an_error():
    with pytest.raises(Error, match="other ops"):
        for_any_batch(stack_record(layers=1), 8, stack_record(layers=2), 16)


def test_micro_batches_are_tried():
    best = plan(
        Stack(), (torch.zeros(4, 32),), ipus=1, batch=64, micro_batches=(4, 16), optimizer="sgd"
    )

    assert best.configuration.micro_batch == 16
    assert best.configuration.accumulation == 4


def test_units_of_a_program_can_be_planned():
    units = units_of(stack_record(layers=8), CostSettings(BOW))

    assert plans_for(units, BASE, batch=256)[0].fits
