"""The short way in C++: it runs, refuses what it must, keeps nothing, and can be done without."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.native.lane_models import EDITS, Scaled, in_lane
from tests.native.runs import assert_close, batch, options
from torch import nn

import poptorch
from pantile.errors import Error, ExecutionError, StateError
from pantile.runtime import hot_call
from pantile.runtime.native.lane_library import LANE
from pantile.runtime.native.loop import Loop


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """It is built in the background: whichever test comes first on a fresh machine waits for it."""
    assert LANE.wait() is not None


@pytest.fixture(scope="module")
def model(built: None) -> Any:
    """A model whose calls take the lane."""
    return warmed(Scaled(), batch()[0])


def warmed(module: nn.Module, *arguments: torch.Tensor) -> Any:
    executor = poptorch.inferenceModel(module, options())
    for _ in range(4):
        executor(*arguments)
    assert in_lane(executor)
    return executor


WRONG: dict[str, Callable[[torch.Tensor], Any]] = {
    "other rows": lambda x: x[:2].clone(),
    "one dim more": lambda x: x[None],
    "double": torch.Tensor.double,
    "integers": torch.Tensor.long,
    "another stride": lambda x: x.t().contiguous().t(),
    "a broadcast row": lambda x: x[:1].expand(4, 4),
    "a gradient": lambda x: x.clone().requires_grad_(),
    "a subclass": nn.Parameter,
    "a negation": torch._neg_view,
    "no memory": lambda x: x.to("meta"),
    "memory given back": lambda x: given_back(x.clone()),
    "memory cut short": lambda x: cut_short(x.clone()),
    "sparse": torch.Tensor.to_sparse,
    "a number": lambda x: 3.0,
    "an array": lambda x: x.numpy(),
    "nothing": lambda x: None,
}


def given_back(x: torch.Tensor) -> torch.Tensor:
    x.untyped_storage().resize_(0)
    return x


def cut_short(x: torch.Tensor) -> torch.Tensor:
    x.untyped_storage().resize_(32)
    return x


@pytest.mark.parametrize("kind", WRONG)
def test_the_lane_refuses_another_kind_of_argument(model: Any, kind: str) -> None:
    x = batch()[0]
    lane = model._hot.call

    assert lane((WRONG[kind](x),)) is hot_call.MISS
    assert_close(lane((x,)), (x * model.model.scale).detach())


@pytest.mark.parametrize("kind", ["memory given back", "memory cut short"])
def test_memory_that_does_not_hold_the_argument_is_an_error(model: Any, kind: str) -> None:
    x = batch()[0]
    with pytest.raises((Error, RuntimeError)):
        model(WRONG[kind](x))
    for _ in range(2):
        assert_close(model(x), (x * model.model.scale).detach())


def test_the_lane_refuses_another_number_of_arguments(model: Any) -> None:
    x, lane = batch()[0], model._hot.call

    assert lane(()) is hot_call.MISS
    assert lane((x, x)) is hot_call.MISS
    assert lane([x]) is hot_call.MISS
    with pytest.raises(TypeError):
        lane(x, x)


def test_the_lane_refuses_other_modes(model: Any) -> None:
    x, lane = batch()[0], model._hot.call
    with torch.autocast("cpu", torch.bfloat16):
        assert lane((x,)) is hot_call.MISS
    with torch.no_grad():
        assert lane((x,)) is not hot_call.MISS


def test_the_lane_is_for_inference_mode_too(model: Any) -> None:
    lane = model._hot.call
    with torch.inference_mode():
        x = batch()[0]
        inside = lane((x,))
        assert torch.is_inference_mode_enabled()
    outside = lane((x,))

    assert x.is_inference() and not inside.is_inference() and not outside.is_inference()
    expected = x.clone() * model.model.scale.detach()
    for result in (inside, outside):
        assert_close(result, expected)
        result.mul_(2)  # refused by a tensor of inference mode


@pytest.mark.parametrize("edit", EDITS)
def test_the_next_call_sees_what_happened_to_a_weight(edit: Callable[[Scaled], None]) -> None:
    x, module = batch()[0], Scaled()
    executor = warmed(module, x)

    edit(module)

    for _ in range(3):
        assert_close(executor(x), (x * module.scale).detach())


def test_children_that_are_added_send_the_call_the_long_way() -> None:
    x, module = batch()[0], Scaled()
    executor = warmed(module, x)
    lane = executor._hot.call

    module.child = nn.Linear(1, 1)

    assert lane((x,)) is hot_call.MISS


class Pair(NamedTuple):
    total: torch.Tensor
    double: torch.Tensor


class Shaped(nn.Module):
    """Returns its results in one of several containers."""

    def __init__(self, build: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.build = build

    def forward(self, x: torch.Tensor) -> Any:
        return self.build(x + 1, x * 2)


BUILDS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, b],
    "dict": lambda a, b: {"total": a, "double": b},
    "named tuple": Pair,
    "nested": lambda a, b: (a, [b]),
    "with a number": lambda a, b: (a, 5, b),
    "the same twice": lambda a, b: (a, a),
}


@pytest.mark.parametrize("kind", BUILDS)
def test_results_come_in_the_models_own_structure(kind: str) -> None:
    x = batch()[0]
    module = Shaped(BUILDS[kind])
    executor = warmed(module, x)

    got, expected = executor(x), module(x)

    assert type(got) is type(expected)
    leaves, wanted = (torch.utils._pytree.tree_leaves(value) for value in (got, expected))
    assert len(leaves) == len(wanted)
    for leaf, other in zip(leaves, wanted, strict=True):
        if isinstance(other, torch.Tensor):
            assert_close(leaf, other)
            with pytest.raises(Error, match="backward"):
                leaf.backward()
        else:
            assert leaf == other


def test_threads_that_call_at_once_get_their_own_results(model: Any) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        x = torch.full((4, 4), float(number))
        expected = (x * model.model.scale).detach()
        wrong.append(sum(not torch.allclose(model(x), expected) for _ in range(500)))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == [0] * 6
    model(batch()[0])
    model(batch()[0])
    assert in_lane(model)


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.table(i)


def test_a_program_that_fails_is_an_error_and_works_again() -> None:
    module, good = Lookup(), torch.tensor([0, 4, 2])
    executor = warmed(module, good)

    for _ in range(3):
        with pytest.raises(ExecutionError, match="out of bounds"):
            executor(torch.tensor([0, 5, 2]))
        assert_close(executor(good), module(good).detach())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops come back to Python after every device iteration."""
    monkeypatch.setitem(Loop.__init__.__kwdefaults__, "deadline", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_run_that_pauses_is_finished() -> None:
    x = torch.arange(24.0).view(6, 4)
    module = Scaled()
    executor = poptorch.inferenceModel(module, options().deviceIterations(6))
    for _ in range(4):
        executor(x)
    assert in_lane(executor)

    assert_close(executor(x), (x * module.scale).detach())


@pytest.mark.usefixtures("impatient")
def test_a_call_from_within_a_paused_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal's handler could do it."""
    x = torch.arange(24.0).view(6, 4)
    module = Scaled()
    executor = poptorch.inferenceModel(module, options().deviceIterations(6))
    for _ in range(4):
        executor(x)
    run, errors = Loop._go_on, []

    def call_inside(loop: Loop, done: int, end: int) -> None:
        with pytest.raises(StateError, match="running") as caught:
            executor(x * 2)
        errors.append(caught)
        run(loop, done, end)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_go_on", call_inside)
        result = executor(x)

    assert errors
    assert_close(result, (x * module.scale).detach())
    assert_close(executor(x), (x * module.scale).detach())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_fifty_thousand_calls_leave_nothing_behind(model: Any) -> None:
    x = batch()[0]
    miss = x.double()
    lane = model._hot.call

    def calls(count: int) -> tuple[int, int, int]:
        for _ in range(count):
            model(x)
        for _ in range(100):
            lane((miss,))
        gc.collect()
        return resident_bytes(), sys.getallocatedblocks(), sys.getrefcount(x)

    calls(5_000)
    windows = [(calls(1_000), calls(50_000)) for _ in range(3)]

    # A leak shows every time; what other threads of the process do meanwhile does not.
    assert min(after[0] - before[0] for before, after in windows) < 1 << 20
    assert min(abs(after[1] - before[1]) for before, after in windows) < 50
    assert all(after[2] == before[2] for before, after in windows)


def test_an_executor_that_is_dropped_frees_its_lane() -> None:
    x = batch()[0]
    executor = warmed(Scaled(), x)
    gone = weakref.ref(executor._hot)
    del executor
    gc.collect()

    assert gone() is None


# Without it


@pytest.mark.parametrize("kind", WRONG)
def test_python_refuses_another_kind_of_argument(model: Any, kind: str) -> None:
    assert model._hot._call((WRONG[kind](batch()[0]),)) is hot_call.MISS


@pytest.mark.parametrize("edit", EDITS)
def test_python_sees_what_happened_to_a_weight(edit: Callable[[Scaled], None]) -> None:
    x, module = batch()[0], Scaled()
    executor = warmed(module, x)
    hot = executor._hot

    edit(module)

    result = hot._call((x,))
    if result is not hot_call.MISS:  # values in the same memory
        assert_close(result, (x * module.scale).detach())
