"""Weights are packed once for many calls of inference, and every edit of one is seen.

The model packs: its products have rows enough. What it should return is what eager torch says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.native.lane_models import in_lane
from tests.native.runs import assert_close, options, run_script
from torch import nn

import poptorch
from pantile.runtime.native.lane_library import LANE

BATCH = 8


class Packed(nn.Module):
    """Layers whose weights inference packs, and a buffer that is not a weight."""

    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.images = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.layer = nn.Linear(16 * 4 * 4, 32)
        self.register_buffer("shift", torch.linspace(0, 1, 32))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        y = self.norm(self.images(x)).relu().flatten(1)
        out = self.layer(y) + self.shift
        return out if labels is None else (out, nn.functional.cross_entropy(out, labels))


def images(seed: int = 0, rows: int = BATCH) -> torch.Tensor:
    return torch.randn(rows, 3, 4, 4, generator=torch.Generator().manual_seed(seed))


def labels(rows: int = BATCH) -> torch.Tensor:
    return torch.arange(rows) % 32


def made(module: nn.Module, **setters: Any) -> Any:
    return poptorch.inferenceModel(module.eval(), options(**setters))


def setups(executor: Any) -> int:
    """How often weights were packed by the program in use."""
    (bound,) = executor._native._bound.values()
    found: int = bound.runner.loop.setups
    return found


def check(executor: Any, module: nn.Module, rows: int = BATCH) -> None:
    for seed in range(3):
        x = images(seed, rows)
        with torch.no_grad():
            wanted = module.eval()(x)
        assert_close(executor(x), wanted, rtol=1e-4, atol=1e-5)


def warmed(module: nn.Module, **setters: Any) -> Any:
    """An executor whose calls take the shortest way."""
    assert LANE.wait() is not None
    executor = made(module, **setters)
    for _ in range(3):
        check(executor, module)
    assert in_lane(executor)
    return executor


def test_weights_are_packed_once() -> None:
    executor = warmed(module := Packed())

    check(executor, module)

    assert setups(executor) == 1


def in_place(module: Packed) -> None:
    with torch.no_grad():
        module.layer.weight[3, 5] += 4


def in_place_of_an_image_weight(module: Packed) -> None:
    with torch.no_grad():
        module.images.weight[0, 0, 0, 0] = 3


def through_data(module: Packed) -> None:
    module.layer.weight.data.mul_(1.25)


def new_data(module: Packed) -> None:
    module.layer.weight.data = module.layer.weight.data * 2


def new_parameter(module: Packed) -> None:
    module.layer.weight = nn.Parameter(torch.randn(32, 256))


def through_numpy(module: Packed) -> None:
    module.images.weight.detach().numpy()[:] *= 2


def loaded(module: Packed) -> None:
    state = {name: t.clone() for name, t in module.state_dict().items()}
    state["layer.weight"][0, 0] = 9
    module.load_state_dict(state)


def a_buffer(module: Packed) -> None:
    module.shift[1] = 5
    module.norm.running_var[2] = 3  # type: ignore[index]


def shared(module: Packed) -> None:
    module.share_memory()
    module.layer.weight.data[1, 7] = 12


EDITS = (
    in_place,
    in_place_of_an_image_weight,
    through_data,
    new_data,
    new_parameter,
    through_numpy,
    loaded,
    a_buffer,
    shared,
)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
@pytest.mark.parametrize("short", [True, False], ids=["lane", "long way"])
def test_an_edit_is_seen_at_the_next_call(edit: Callable[[Packed], None], short: bool) -> None:
    module = Packed()
    executor = warmed(module)
    for _ in range(2):
        edit(module)
        if not short:
            executor._hot = None
        check(executor, module)


def test_two_executors_of_one_model_see_the_same_edits() -> None:
    module = Packed()
    first, second = warmed(module), warmed(module)

    in_place(module)

    check(first, module)
    check(second, module)
    assert (setups(first), setups(second)) == (2, 2)


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_training_between_calls_is_seen(engine: str) -> None:
    module = Packed()
    inference = warmed(module)
    sgd = torch.optim.SGD(module.parameters(), lr=0.05)
    training = poptorch.trainingModel(module, options(engine), sgd)
    for seed in range(5):
        module.train()
        training(images(seed), labels())
        check(inference, module)
    assert setups(inference) > 1
    before = setups(inference)
    check(inference, module)
    assert setups(inference) == before


def test_training_by_torch_between_calls_is_seen() -> None:
    module = Packed()
    inference = warmed(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, fused=True)
    for seed in range(3):
        module.train()
        optimizer.zero_grad()
        module(images(seed), labels())[1].backward()
        optimizer.step()
        check(inference, module)


@pytest.mark.parametrize(("iterations", "replicas"), [(3, 1), (1, 2), (2, 2)])
def test_device_iterations_and_replicas(iterations: int, replicas: int) -> None:
    module = Packed()
    setters = {"deviceIterations": iterations, "replicationFactor": replicas}
    executor = made(module, **setters)
    rows = BATCH * iterations * replicas
    for _ in range(2):
        check(executor, module, rows)
    assert setups(executor) == replicas

    in_place(module)
    check(executor, module, rows)
    assert setups(executor) == 2 * replicas


def test_weights_in_shared_memory_are_never_kept() -> None:
    module = Packed().share_memory()
    executor = warmed(module)
    module.layer.weight.data[1, 7] = 12  # as another process could

    check(executor, module)
    assert not executor._native._bound.popitem()[1].runner.watched


def test_the_option_turns_it_off() -> None:
    module = Packed()
    executor = warmed(module, keepPackedWeights=False)

    module.layer.weight.data[1, 7] = 12

    check(executor, module)
    assert setups(executor) == 0


def test_resident_weights_change_when_they_are_copied() -> None:
    module = Packed()
    chosen = options().strict()
    executor = poptorch.inferenceModel(module.eval(), chosen)
    x = images()
    with torch.no_grad():
        before = module(x)
        for _ in range(3):
            assert_close(executor(x), before, rtol=1e-4, atol=1e-5)
        module.layer.weight[3, 5] += 4
        assert_close(executor(x), before, rtol=1e-4, atol=1e-5)
        executor.copyWeightsToDevice()
        for _ in range(2):
            assert_close(executor(x), module(x), rtol=1e-4, atol=1e-5)


def test_copying_weights_to_the_device_packs_them_again() -> None:
    module = Packed()
    executor = warmed(module)
    module.layer.weight.data[1, 7] = 12  # may be noticed, or not

    executor.copyWeightsToDevice()

    check(executor, module)


FORKED = """
import os, torch
from tests.native.test_kept_weights import Packed, check, warmed, in_place

module = Packed()
executor = warmed(module)
child = os.fork()
in_place(module)
if child:
    module.layer.bias.data.zero_()
check(executor, module)
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("both")
"""


def test_a_forked_process_packs_its_own() -> None:
    assert run_script(FORKED).strip() == "both"
