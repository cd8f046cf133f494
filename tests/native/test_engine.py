"""The rules of the native engine: what runs where, and what happens if it cannot."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.native.runs import (
    Compilations,
    Net,
    Pass,
    assert_close,
    batch,
    inference_pair,
    momentum,
    options,
    run_script,
    runs_natively,
    seeded,
    training_pair,
)
from torch import nn

import poptorch
from poptorch.enums import OutputMode


def training(chosen: poptorch.Options, model: Any = Net) -> poptorch.PoplarExecutor:
    net = seeded(model)
    return poptorch.trainingModel(net, chosen, momentum(net.parameters()))


# Which iteration runs where


def test_the_first_device_iteration_has_the_bits_of_eager() -> None:
    pair = training_pair(deviceIterations=3, outputMode=OutputMode.All)

    results, expected = pair.native(*batch(3)), pair.reference(*batch(3))

    assert torch.equal(results[0][:4], expected[0][:4])
    assert torch.equal(results[1][0], expected[1][0])
    assert runs_natively(pair.native)


def test_a_first_call_of_one_iteration_compiles_nothing(compilations: Compilations) -> None:
    step = training(options())

    step(*batch())

    assert compilations.used == 0
    assert not runs_natively(step)


def test_compile_compiles_and_the_calls_after_it_do_not(compilations: Compilations) -> None:
    step = training(options())

    step.compile(*batch())
    assert compilations.used == 1
    for _ in range(3):
        step(*batch())

    assert compilations.used == 1
    assert runs_natively(step)
    assert step.compilationTime().total_seconds() > 0


def test_compiling_ahead_does_not_change_the_bits() -> None:
    ahead, later = training(options(deviceIterations=2)), training(options(deviceIterations=2))
    ahead.compile(*batch(2))

    for _ in range(3):
        assert torch.equal(ahead(*batch(2))[1], later(*batch(2))[1])


def test_compiling_does_not_touch_the_model() -> None:
    """Timing runs the program, on copies."""
    step = training(options())
    before = {name: value.clone() for name, value in step.model.state_dict().items()}

    step.compile(*batch())

    assert all(torch.equal(v, before[n]) for n, v in step.model.state_dict().items())
    assert not step._control.optimizer.state


def test_a_destroyed_executor_starts_again() -> None:
    pair = training_pair()
    pair.check(*batch(), calls=2)

    for executor in (pair.native, pair.reference):
        executor.destroy()
    pair.check(*batch(), calls=3)

    assert runs_natively(pair.native)


def test_a_detached_executor_goes_on() -> None:
    pair = training_pair()
    pair.check(*batch(), calls=4)

    for executor in (pair.native, pair.reference):
        executor.detachFromDevice()
    pair.check(*batch(), calls=2)

    assert pair.native.isAttachedToDevice()


def test_a_loss_scale_set_between_calls_holds() -> None:
    """1 and other factors are different programs; 64 and 1024 are not."""
    pair = training_pair(lambda p: poptorch.optim.AdamW(p, lr=0.01, loss_scaling=64.0))
    pair.check(*batch(), calls=4)

    for executor in (pair.native, pair.reference):
        executor._control.optimizer.loss_scaling = 1024.0
        executor.setOptimizer(executor._control.optimizer)

    pair.check(*batch(), calls=3)


def test_evaluation_mode_is_another_program() -> None:
    x = torch.ones(1, 512)
    infer = poptorch.inferenceModel(nn.Dropout(0.25), options())
    for _ in range(4):
        assert not torch.equal(infer(x), x)

    infer.eval()

    for _ in range(3):
        assert torch.equal(infer(x), x)


def test_a_parameter_frozen_between_calls_stays() -> None:
    pair = training_pair()
    pair.check(*batch(), calls=4)

    for executor in (pair.native, pair.reference):
        executor.model.first.weight.requires_grad_(False)
    before = pair.native.model.first.weight.clone()
    pair.check(*batch(), calls=3)

    assert torch.equal(pair.native.model.first.weight, before)
    assert runs_natively(pair.native)


def test_executors_run_on_two_threads_at_once() -> None:
    expected = training(options(deviceIterations=50))
    for _ in range(4):
        expected(*batch(50))
    steps = [training(options(deviceIterations=50)) for _ in range(2)]
    for step in steps:
        step(*batch(50))

    def work(step: poptorch.PoplarExecutor) -> None:
        torch.set_num_threads(1)
        for _ in range(3):
            step(*batch(50))

    threads = [threading.Thread(target=work, args=[step]) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for step in steps:
        for ours, wanted in zip(step.parameters(), expected.parameters(), strict=True):
            assert torch.equal(ours, wanted)


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.table(index).sum(1)


def test_an_error_in_compiled_code_is_an_error_in_python() -> None:
    model = poptorch.inferenceModel(Lookup(), options())
    good, bad = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, 2], [3, 5]])
    for _ in range(2):
        expected = model(good)
    assert runs_natively(model)

    with pytest.raises(poptorch.Error, match="index out of bounds") as raised:
        model(bad)

    assert "reference" in raised.value.fix
    assert torch.equal(model(good), expected)


def test_values_the_program_fails_on_do_not_stop_its_compilation() -> None:
    """Timing runs the program on what `compile` was given: zeros, perhaps."""
    matrix = torch.eye(3).repeat(2, 1, 1) * 4
    infer = poptorch.inferenceModel(Pass(lambda x: torch.linalg.cholesky(x) + 1), options())

    infer.compile(torch.zeros(2, 3, 3))

    for _ in range(3):
        assert_close(infer(matrix), torch.linalg.cholesky(matrix) + 1)
    with pytest.raises(RuntimeError, match="cholesky"):
        infer(torch.zeros(2, 3, 3))


# What cannot be compiled


def printed(x: torch.Tensor) -> torch.Tensor:
    return poptorch.ipu_print_tensor(x * 2, "doubled") + 1


def branched(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,))


@pytest.mark.parametrize(
    ("function", "named"), [(printed, "print_tensor"), (branched, "cond")], ids=["print", "cond"]
)
def test_a_program_that_cannot_be_compiled_runs_with_one_message(
    function: Any, named: str, compilations: Compilations
) -> None:
    pair = inference_pair(lambda: Pass(function), deviceIterations=2)
    x = batch(2)[0]

    pair.check(x, calls=2)
    pair.check(-x, calls=2)

    (warning,) = compilations.warnings
    assert named in warning
    assert not runs_natively(pair.native)


def test_what_is_printed_is_printed_once_for_each_micro_batch(
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = poptorch.inferenceModel(Pass(printed), options(deviceIterations=3))
    for _ in range(2):
        model(batch(3)[0])

    assert capfd.readouterr().err.count("doubled") == 6


def test_step_hooks_of_an_optimizer_run_in_python(compilations: Compilations) -> None:
    pair = training_pair(deviceIterations=2)
    calls: list[object] = []
    for executor in (pair.native, pair.reference):
        executor._control.optimizer.register_step_post_hook(lambda *_: calls.append(1))

    pair.check(*batch(2), calls=3)

    assert len(calls) == 2 * 2 * 3
    (warning,) = compilations.warnings
    assert "step hooks" in warning


def test_a_hook_registered_later_is_called_from_then_on() -> None:
    step, calls = training(options(deviceIterations=2)), []
    for _ in range(4):
        step(*batch(2))
    assert runs_natively(step)

    step._control.optimizer.register_step_post_hook(lambda *_: calls.append(1))
    step(*batch(2))

    assert len(calls) == 2


NO_COMPILER = """
import sys
import torch
from tests.native.runs import Net, batch, momentum, options, seeded
import poptorch
model = seeded(Net)
step = poptorch.trainingModel(model, options(sys.argv[1]), momentum(model.parameters()))
for _ in range(3):
    loss = step(*batch())[1]
print(loss.item())
"""


@pytest.mark.parametrize("compiler", ["/nonexistent", "/bin/false"])
def test_without_a_compiler_the_model_runs_and_a_message_says_why(
    compiler: str, tmp_path: Any
) -> None:
    reference = training(options("reference"))
    for _ in range(3):
        expected = reference(*batch())[1]
    log = tmp_path / "log"

    out = run_script(
        NO_COMPILER,
        "native",
        CXX=compiler,
        PANTILE_CACHE_DIR=str(tmp_path / "cache"),
        POPTORCH_LOG_DEST=str(log),
    )

    assert_close(float(out), expected.item())
    (line,) = log.read_text().strip().split("[warning] ")[1:]
    assert "runs on the reference engine" in line
    assert "C++ compiler" in line
    assert "fix: " in line
    assert compiler in line or "failed" in line


# What a program is


def test_constants_are_not_part_of_the_code(compilations: Compilations) -> None:
    """Two models that differ in a table only share one executable."""

    def scaled(table: torch.Tensor) -> Any:
        return lambda x: F.relu(x * table)

    x = batch()[0]
    for scale in (1.0, 2.0):
        table = torch.arange(4.0) * scale
        model = poptorch.inferenceModel(Pass(scaled(table)), options())
        for _ in range(2):
            out = model(x)
        assert runs_natively(model)
        assert_close(out, F.relu(x * table))

    assert compilations.used == 2
    assert len({line.split(":")[0] for line in compilations.lines if "executable" in line}) == 1
