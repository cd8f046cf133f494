"""`save`, `compileAndExport`, `load` and `loadExecutable`."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.unit.runtime.toy_models import Regression, data, options, same_state, strict
from torch import nn

import poptorch
from pantile.errors import InputMismatch, StoreError


class Noisy(nn.Module):
    """Dropout and batch norm: random numbers, and buffers that training writes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None):
        out = self.last(self.dropout(F.gelu(self.norm(self.first(x)))))
        return out if target is None else (out, F.mse_loss(out, target))


OPTIMIZERS = {
    "torch Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "torch SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "poptorch AdamW": lambda p: poptorch.optim.AdamW(p, lr=0.01, loss_scaling=8.0),
    "poptorch LAMB": lambda p: poptorch.optim.LAMB(p, lr=0.01),
    "poptorch RMSprop": lambda p: poptorch.optim.RMSprop(p, lr=0.01, centered=True),
}


def trained(make, how: poptorch.Options, batches) -> poptorch.PoplarExecutor:
    """A training executor of `Noisy` that has made some steps."""
    model = Noisy()
    executor = poptorch.trainingModel(model, how, make(model.parameters()))
    for batch in batches:
        executor(*batch)
    return executor


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("base", [options, strict], ids=["default", "strict"])
def test_loaded_training_goes_on_bit_for_bit(make, base, tmp_path: Path) -> None:
    how = base(accumulation=2, deviceIterations=2, randomSeed=42)
    batches = [data(16) for _ in range(6)]
    executor = trained(make, how, batches[:3])
    executor.save(tmp_path / "model.poptorch")
    expected = [executor(*batch) for batch in batches[3:]]

    loaded = poptorch.load(tmp_path / "model.poptorch")
    results = [loaded(*batch) for batch in batches[3:]]

    for got, wanted in zip(results, expected, strict=True):
        assert all(map(torch.equal, got, wanted))
    assert same_state(loaded.model, executor.model)
    assert loaded.rng_state == executor.rng_state


def test_loaded_training_without_a_seed_goes_on_with_torchs_generator(tmp_path: Path) -> None:
    batches = [data(4) for _ in range(4)]
    executor = trained(OPTIMIZERS["torch Adam"], options(), batches[:2])
    executor.save(tmp_path / "file")
    expected = [executor(*batch)[1] for batch in batches[2:]]

    loaded = poptorch.load(tmp_path / "file")

    assert all(map(torch.equal, [loaded(*batch)[1] for batch in batches[2:]], expected))


def test_random_state_is_left_out_on_request(tmp_path: Path) -> None:
    executor = trained(OPTIMIZERS["torch SGD"], options(randomSeed=3), [data(4)])
    executor.save(tmp_path / "file", save_rng_state=False)

    assert executor.rng_state == [3, 1]
    assert poptorch.load(tmp_path / "file").rng_state == [3, 0]


@pytest.mark.parametrize("base", [options, strict], ids=["default", "strict"])
def test_each_replica_gets_its_own_buffers_back(base, tmp_path: Path) -> None:
    how = base(replicationFactor=2, broadcastBuffers=False, randomSeed=1)
    how.outputMode(poptorch.OutputMode.All)
    batches = [data(8) for _ in range(4)]
    executor = trained(OPTIMIZERS["torch SGD"], how, batches[:2])
    executor.eval()
    executor.train()
    executor.save(tmp_path / "file")
    expected = [executor(*batch)[0] for batch in batches[2:]]

    loaded = poptorch.load(tmp_path / "file")

    assert all(map(torch.equal, [loaded(*batch)[0] for batch in batches[2:]], expected))


def test_loaded_model_shares_nothing_with_the_saved_one(tmp_path: Path) -> None:
    executor = trained(OPTIMIZERS["torch SGD"], options(), [data(2)])
    executor.save(tmp_path / "file")
    loaded = poptorch.load(tmp_path / "file")
    before = loaded.last.weight.clone()

    executor(*data(2))

    assert torch.equal(loaded.last.weight, before)
    assert not torch.equal(executor.last.weight, before)


def test_optimizer_comes_back_over_the_loaded_parameters(tmp_path: Path) -> None:
    model = Noisy()
    groups = [
        {"params": model.first.parameters(), "lr": 0.1},
        {"params": model.last.parameters(), "weight_decay": 0.5},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.2)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)
    executor = poptorch.trainingModel(model, options(), optimizer)
    executor(*data(2))
    executor.save(tmp_path / "file")

    loaded = poptorch.load(tmp_path / "file")
    optimizer = loaded._control.optimizer

    assert type(optimizer) is torch.optim.AdamW
    assert [g["lr"] for g in optimizer.param_groups] == [0.1, 0.2]
    assert optimizer.param_groups[1]["weight_decay"] == 0.5
    assert optimizer.param_groups[0]["params"][0] is loaded.model.first.weight
    assert float(optimizer.state[loaded.model.first.weight]["step"]) == 1
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    loaded(*data(2))
    scheduler.step()
    assert [g["lr"] for g in optimizer.param_groups] == [0.05, 0.1]


def test_weights_that_only_the_device_had_are_in_the_file(tmp_path: Path) -> None:
    model = Regression()
    executor = poptorch.trainingModel(model, strict(), torch.optim.SGD(model.parameters(), lr=0.1))
    start = model.fc.weight.detach().clone()
    executor(*data(1))

    executor.save(tmp_path / "file")

    loaded = poptorch.load(tmp_path / "file")
    assert not torch.equal(loaded.model.fc.weight.detach(), start)
    assert same_state(loaded.model, model)


def test_compile_and_export_does_not_train(tmp_path: Path) -> None:
    model = Regression()
    start = model.fc.weight.detach().clone()
    executor = poptorch.trainingModel(model, options())

    executor.compileAndExport(tmp_path / "file", *data(2))

    assert torch.equal(model.fc.weight, start)
    loaded = poptorch.load(tmp_path / "file")
    assert loaded.isCompiled() and loaded.isAttachedToDevice()
    assert torch.equal(loaded.model.fc.weight, start)


def test_model_compiled_for_an_absent_device_is_loaded_to_be_run(tmp_path: Path) -> None:
    model = Regression()
    offline = options().useOfflineIpuTarget(21)
    executor = poptorch.inferenceModel(model, offline)
    x = torch.randn(2, 3)
    executor.compileAndExport(tmp_path / "file", x)

    loaded = poptorch.load(tmp_path / "file")

    assert loaded.options.connection_type == poptorch.ConnectionType.Always
    assert not loaded.options.exists("ipu_version")
    assert torch.equal(loaded(x), model(x))


def test_options_are_edited_before_the_model_is_wrapped(tmp_path: Path) -> None:
    how = options(deviceIterations=2).modelName("toy")
    how.setExecutionStrategy(poptorch.ShardedExecution(poptorch.Stage("a").ipu(1), "b"))
    executor = poptorch.inferenceModel(Regression(), how)
    executor.compileAndExport(tmp_path / "file", torch.randn(4, 3))
    seen = []

    def edit(edited: poptorch.Options) -> None:
        seen.append(edited.device_iterations)
        edited.outputMode(poptorch.OutputMode.Final)

    loaded = poptorch.load(tmp_path / "file", edit_opts_fn=edit)

    assert seen == [2]
    assert loaded.options.output_mode == poptorch.OutputMode.Final
    assert loaded.options.model_name == "toy"
    assert repr(loaded.options.execution_strategy) == repr(how.execution_strategy)
    assert loaded(torch.randn(4, 3)).shape == (2, 2)


def test_options_that_no_longer_fit_the_arguments_compile_at_the_first_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executor = poptorch.inferenceModel(Regression(), options())
    executor.compileAndExport(tmp_path / "file", torch.randn(4, 3))

    loaded = poptorch.load(tmp_path / "file", lambda edited: edited.deviceIterations(3))

    assert "do not fit the edited options" in caplog.text
    assert loaded(torch.randn(6, 3)).shape == (6, 2)


def test_function_that_edits_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(poptorch.Error, match="edit_opts_fn"):
        poptorch.load(tmp_path / "file", edit_opts_fn=3)


def test_saving_before_compiling_is_an_error(tmp_path: Path) -> None:
    executor = poptorch.inferenceModel(Regression(), options())

    with pytest.raises(poptorch.Error, match="has not been compiled"):
        executor.save(tmp_path / "file")

    assert not (tmp_path / "file").exists()


def test_folder_gets_a_file_and_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    executor = poptorch.inferenceModel(Regression(), options())
    executor.compile(torch.randn(1, 3))

    executor.save(str(tmp_path))

    assert "model.poptorch" in caplog.text
    assert (tmp_path / "model.poptorch").is_file()
    assert poptorch.load(tmp_path).isCompiled()


@pytest.mark.parametrize(
    ("name", "file"),
    [("a/b/c.poptorch", "a/b/c.poptorch"), ("a/b/", "a/b/model.poptorch")],
)
def test_missing_folders_are_made(name: str, file: str, tmp_path: Path) -> None:
    executor = poptorch.inferenceModel(Regression(), options())

    executor.compileAndExport(f"{tmp_path}/{name}", torch.randn(1, 3))

    assert (tmp_path / file).is_file()
    assert (tmp_path / file).stat().st_mode & 0o777 == 0o600
    assert [p.name for p in (tmp_path / file).parent.iterdir()] == [(tmp_path / file).name]


@pytest.mark.parametrize("name", ["", None, 3])
def test_name_that_is_none_is_an_error(name: object) -> None:
    with pytest.raises(poptorch.Error, match="filename"):
        poptorch.load(name)


def test_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nothing_here"):
        poptorch.load(tmp_path / "nothing_here")
    executor = poptorch.inferenceModel(Regression(), options())
    with pytest.raises(poptorch.Error, match="nothing_here"):
        executor.loadExecutable(tmp_path / "nothing_here")


# Without the model


def test_file_without_a_model_is_for_a_wrapped_one(tmp_path: Path) -> None:
    class Local(Regression):
        pass

    model, x = Local(), torch.randn(2, 3)
    poptorch.inferenceModel(model, options()).compileAndExport(
        tmp_path / "file", x, export_model=False
    )

    with pytest.raises(AssertionError, match="export_model=False"):
        poptorch.load(tmp_path / "file")
    other = Local()
    executor = poptorch.inferenceModel(other, options().pinSignature())
    executor.loadExecutable(tmp_path / "file")

    assert executor.isCompiled()
    assert torch.equal(executor(x), other(x))
    with pytest.raises(InputMismatch, match="Shape mismatch"):
        executor(torch.randn(1, 3))


def test_file_without_a_model_holds_no_weights(tmp_path: Path) -> None:
    model = nn.Linear(300, 300)
    executor = poptorch.inferenceModel(model, options())

    executor.compileAndExport(tmp_path / "file", torch.randn(1, 300), export_model=False)

    assert (tmp_path / "file").stat().st_size < 300 * 300 * 4


def test_executable_of_the_other_kind_is_refused(tmp_path: Path) -> None:
    poptorch.inferenceModel(Regression(), options()).compileAndExport(
        tmp_path / "file", torch.randn(1, 3)
    )
    executor = poptorch.trainingModel(Regression(), options())

    with pytest.raises(poptorch.Error, match="was exported from an inference model"):
        executor.loadExecutable(tmp_path / "file")


def test_inference_is_linked_to_training_again_through_load_executable(tmp_path: Path) -> None:
    training = poptorch.trainingModel(Regression(), options())
    inference = poptorch.inferenceModel(training, options())
    training.compileAndExport(tmp_path / "train", *data(2))
    inference.compileAndExport(tmp_path / "infer", torch.randn(2, 3), export_model=False)

    training = poptorch.load(tmp_path / "train")
    inference = poptorch.inferenceModel(training, options())
    inference.loadExecutable(tmp_path / "infer")
    training(*data(2))
    x = torch.randn(2, 3)

    assert torch.equal(inference(x), training.model(x))


# Files


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = trained(OPTIMIZERS["poptorch AdamW"], options(), [data(2)])
    forbidden = pytest.fail

    for owner, name in [(pickle, "loads"), (pickle, "load"), (pickle, "dumps"), (torch, "load")]:
        monkeypatch.setattr(owner, name, lambda *_, **__: forbidden("pickle was used"))
    executor.save(tmp_path / "file")
    poptorch.load(tmp_path / "file")


def test_saving_again_replaces_the_file(tmp_path: Path) -> None:
    executor = trained(OPTIMIZERS["torch SGD"], options(), [data(2)])
    executor.save(tmp_path / "file")
    executor(*data(2))
    executor.save(tmp_path / "file")

    assert same_state(poptorch.load(tmp_path / "file").model, executor.model)


def test_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    executor = poptorch.inferenceModel(Regression(), options())

    with pytest.raises(StoreError, match="taken"):
        executor.compileAndExport(tmp_path / "taken" / "file", torch.randn(1, 3))


def test_model_that_cannot_be_exported_leaves_no_file(tmp_path: Path) -> None:
    model = Regression()
    model.act = lambda x: x
    executor = poptorch.inferenceModel(model, options())

    with pytest.raises(StoreError, match=r"model\.act"):
        executor.compileAndExport(tmp_path / "file", torch.randn(1, 3))

    assert list(tmp_path.iterdir()) == []


def test_load_writes_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    executor = trained(OPTIMIZERS["poptorch AdamW"], strict(), [data(2)])
    executor.save(tmp_path / "file")
    caplog.clear()

    with caplog.at_level(logging.WARNING):
        poptorch.load(tmp_path / "file")

    assert [r for r in caplog.records if "engine" not in r.message] == []


SCRIPT = """
    import sys, torch, poptorch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(3, 2)
            self.act = swish

        def forward(self, x):
            return self.act(self.fc(x))

    def swish(x):
        return x * torch.sigmoid(x)

    if sys.argv[1] == "save":
        model = poptorch.inferenceModel(Net())
        model.compileAndExport("net.poptorch", torch.ones(1, 3))
    else:
        model = poptorch.load("net.poptorch")
    print(model(torch.ones(1, 3)).tolist())
"""


def test_class_of_a_script_is_found_by_the_same_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))

    def run(mode: str) -> str:
        command = [sys.executable, "script.py", mode]
        result = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    assert run("save") == run("load") != ""
