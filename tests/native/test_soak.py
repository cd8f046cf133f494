"""A long run leaves nothing behind."""

from __future__ import annotations

import pytest
from tests.native.runs import run_script

SOAK = """
import gc
import os
import torch
torch.set_num_threads(1)
from benchmarks.workloads import WORKLOADS
import poptorch

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

workload = WORKLOADS["W2"]
model = workload.with_loss()
options = poptorch.Options().engine("native").deviceIterations(100)
options.showCompilationProgressBar(False)
step = poptorch.trainingModel(model, options, workload.optimizer(model.parameters()))
x, labels = (t.repeat(100, *[1] * (t.dim() - 1)) for t in workload.batch())
for _ in range(100):
    step(x, labels)
gc.collect()
objects, sizes = len(gc.get_objects()), []
for call in range(1000):
    step(x, labels)
    if call % 50 == 0:
        sizes.append(resident())
gc.collect()
print(len(gc.get_objects()) - objects, max(sizes[-5:]) - max(sizes[:5]))
"""


@pytest.mark.slow
def test_a_hundred_thousand_steps_leave_no_objects_and_no_memory() -> None:
    objects, memory = map(int, run_script(SOAK).split())

    assert objects <= 2  # the list of sizes may have grown
    assert memory <= 1 << 20
