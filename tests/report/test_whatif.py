"""What the page computes is what the model in Python computes."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files

import pytest
import torch
from tests.report.programs import Pipeline

from pantile.machine.advice import with_batch
from pantile.machine.memory import memory_of, verdict_of
from pantile.machine.report import document
from pantile.machine.targets import pod
from pantile.machine.timing import time_of
from pantile.planning import estimate
from pantile.report_page import page

pytestmark = pytest.mark.browser
CHANGES = {
    "nothing": {},
    "replicas": {"replicas": 4},
    "sharded": {"replicas": 8, "sharded_optimizer_state": True},
    "off chip": {"optimizer_state_off_chip": True},
    "longer accumulation": {"gradient_accumulation": 100},
    "no accumulation": {"gradient_accumulation": 1},
    "stages again": {"recompute": "stage"},
    "layers again": {"recompute": "layer"},
    "half the micro-batch": {"micro_batch": 4},
    "across gateways": {"replicas": 32},
}
FIELDS = {
    "gradient_accumulation": "accumulation",
    "sharded_optimizer_state": "sharded_state",
    "optimizer_state_off_chip": "state_off_chip",
}


@pytest.fixture(scope="module")
def found():
    inputs = (torch.zeros(8, 64),)
    return estimate(Pipeline(8, 64), inputs, ipus=4, accumulation=16, optimizer="adam")


@pytest.fixture
def tab(found, open_page, tmp_path):
    data = document(found, name="p", kind="training", created="2026-01-01", host={"spans": []})
    file = tmp_path / "report.html"
    file.write_text(page(data))
    return open_page(file)


@pytest.mark.parametrize("name", CHANGES)
def test_the_page_agrees_with_the_model(found, tab, name):
    changes = CHANGES[name]
    chosen = replace(found.configuration, **{FIELDS.get(k, k): v for k, v in changes.items()})
    needed = 1 << (len(found.stages) * chosen.replicas - 1).bit_length()
    chosen = replace(chosen, system=pod(chosen.system.chip, needed))
    ratio = chosen.micro_batch / found.configuration.micro_batch
    stages = [[with_batch(u, ratio) if ratio != 1 else u for u in s] for s in found.stages]
    timing, memory = time_of(stages, chosen), memory_of(stages, chosen)

    code = files("pantile.report_page").joinpath("model.js").read_text()
    data = "JSON.parse(document.getElementById('report').textContent)"
    shown = tab.evaluate(f"changes => {{ {code}\nreturn predicted({data}, changes); }}", changes)

    assert shown["seconds_per_update"] == pytest.approx(timing.seconds)
    assert shown["samples_per_second"] == pytest.approx(timing.samples_per_second)
    assert shown["bubble"] == pytest.approx(timing.bubble)
    assert shown["verdict"] == verdict_of(memory, chosen.system.chip)
    for mine, theirs in zip(shown["stages"], memory, strict=True):
        parts = {k: v for k, v in theirs.parts().items() if k in mine["memory"]}
        assert {k: mine["memory"][k] for k in parts} == parts
        assert mine["memory"]["total"] == theirs.total


def test_the_form_changes_the_numbers(tab):
    tab.click("#views a[href='#whatif']")
    before = tab.inner_text("#whatif-result table")

    tab.fill("input[name=replicas]", "4")

    after = tab.inner_text("#whatif-result table")
    assert after != before
