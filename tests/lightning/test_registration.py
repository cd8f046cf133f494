"""How a script gets the accelerator: by name, by class, with no import of ours; not by chance."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.accelerators import AcceleratorRegistry, CPUAccelerator
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException

import pantile.lightning
from pantile.lightning import IPUAccelerator, IPUStrategy, Namespace

QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
TRAIN = """
trainer = Trainer(accelerator="ipu", devices=2, max_steps=2, logger=False,
                  enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(BoringModel())
print(type(trainer.strategy).__name__, trainer.num_devices)
"""


ROOT = Path(__file__).resolve().parents[2]
DECLARE = "from tests.clients.torchvision_ops import declare_missing_ops; declare_missing_ops()\n"
"""A build of torchvision for GPUs cannot be imported without; Lightning imports what it finds."""


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "PANTILE_ENGINE": "reference", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_the_name_is_known_without_an_import(package: str) -> None:
    code = f"{DECLARE}from {package} import Trainer\n"
    code += f"from {package}.demos.boring_classes import BoringModel\n{TRAIN}"

    found = python(code)

    assert found.stdout.splitlines()[-1] == "IPUStrategy 2", found.stderr


def test_importing_torch_costs_next_to_nothing_more() -> None:
    code = """
import sys, time, pantile_autoload
begin = time.perf_counter(); pantile_autoload.autoload(); took = time.perf_counter() - begin
import torch
print(took < 0.005, 'pantile' in sys.modules, 'lightning' in sys.modules)
"""
    assert python(code).stdout.split() == ["True", "False", "False"]


def test_a_broken_installation_is_a_warning() -> None:
    code = f"""{DECLARE}
import sys, warnings; warnings.simplefilter('always')
sys.modules['pantile'] = None
import pantile_autoload; pantile_autoload.autoload()
from lightning.pytorch import Trainer
print(Trainer(logger=False, accelerator='cpu').max_steps)
"""
    found = python(code)

    assert found.stdout.split() == ["-1"]
    assert "accelerator='ipu' is not available" in found.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        {"accelerator": "ipu"},
        {"accelerator": "ipu", "devices": "2"},
        {"accelerator": "ipu", "strategy": "ipu_strategy"},
        {"strategy": "ipu_strategy"},
        {"strategy": IPUStrategy},
        {"accelerator": "ipu", "strategy": IPUStrategy},
        {"accelerator": IPUAccelerator},
        {"strategy": lambda: IPUStrategy(accelerator=IPUAccelerator())},
    ],
)
def test_every_way_to_ask_gives_our_strategy_and_accelerator(arguments: dict[str, Any]) -> None:
    made = {k: v() if callable(v) else v for k, v in arguments.items()}

    trainer = pl.Trainer(**made, **QUIET)

    assert isinstance(trainer.strategy, IPUStrategy)
    assert isinstance(trainer.accelerator, IPUAccelerator)
    assert trainer.num_devices == int(arguments.get("devices", 1))
    assert (trainer.world_size, trainer.is_global_zero) == (1, True)
    assert trainer.strategy.root_device == torch.device("cpu")


def test_auto_is_not_taken_from_others() -> None:
    assert isinstance(pl.Trainer(**QUIET).accelerator, CPUAccelerator)


def test_one_strategy_serves_two_trainers() -> None:
    strategy = IPUStrategy()

    for _ in range(2):
        pl.Trainer(accelerator="ipu", strategy=strategy, max_steps=1, **QUIET).fit(BoringModel())

    assert strategy.statistics()["ipu.optimizer_updates"] == 2


def test_another_strategy_is_refused_before_it_trains_on_the_cpu() -> None:
    trainer = pl.Trainer(
        accelerator=IPUAccelerator(), strategy=SingleDeviceStrategy("cpu"), **QUIET
    )

    with pytest.raises(MisconfigurationException, match="would run the model on the CPU"):
        trainer.fit(BoringModel())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": [0, 1]}, r"IPUs are counted, not chosen.*Fix: pass devices=2"),
        ({"devices": -3}, "is not a number of IPUs"),
        ({"devices": "some"}, "is not a number of IPUs"),
    ],
)
def test_devices_are_a_number(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(MisconfigurationException, match=message):
        pl.Trainer(accelerator="ipu", **arguments)


def test_any_number_of_devices_is_possible() -> None:
    assert pl.Trainer(accelerator="ipu", devices=3, **QUIET).num_devices == 3


def test_auto_is_four_as_on_hardware_or_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PANTILE_LIGHTNING_DEVICES")
    assert IPUAccelerator.auto_device_count() == 4
    monkeypatch.setenv("PANTILE_LIGHTNING_DEVICES", "2")
    assert pl.Trainer(accelerator="ipu", devices="auto", **QUIET).num_devices == 2


def test_several_nodes_are_refused() -> None:
    trainer = pl.Trainer(accelerator="ipu", num_nodes=2, **QUIET)

    with pytest.raises(MisconfigurationException, match=r"num_nodes=2.*Fix: remove num_nodes"):
        trainer.fit(BoringModel())


def test_unregister_leaves_lightning_as_it_was() -> None:
    pantile.lightning.unregister(Namespace("lightning.pytorch"))
    try:
        assert "ipu" not in AcceleratorRegistry.available_accelerators()
        with pytest.raises(ValueError, match="invalid accelerator name"):
            pl.Trainer(accelerator="ipu")
    finally:
        pantile.lightning.register(Namespace("lightning.pytorch"))
    assert isinstance(pl.Trainer(accelerator="ipu", **QUIET).strategy, IPUStrategy)


def test_the_old_package_name_works() -> None:
    import lightning_graphcore

    assert lightning_graphcore.IPUStrategy is IPUStrategy
    assert lightning_graphcore.IPUAccelerator is IPUAccelerator


def test_a_line_says_what_runs_where(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = pl.Trainer(accelerator="ipu", devices=2, fast_dev_run=True, **QUIET)

    monkeypatch.setattr(logging.getLogger("lightning.pytorch"), "handlers", [caplog.handler])
    with caplog.at_level("INFO", logger="lightning.pytorch"):
        trainer.fit(BoringModel())

    assert "IPU: 2 replicas × 1 device iteration, fused steps, engine reference" in caplog.text


def test_the_modules_of_the_old_package_work() -> None:
    from lightning_graphcore import accelerator, precision, strategy

    assert accelerator.IPUAccelerator is IPUAccelerator
    assert strategy.IPUStrategy is IPUStrategy
    assert precision.IPUPrecision is pantile.lightning.IPUPrecision
    with pytest.raises(AttributeError, match="no attribute 'IPUPlugin'"):
        strategy.IPUPlugin  # noqa: B018


def test_a_trainer_can_be_pickled() -> None:
    trainer = pl.Trainer(accelerator="ipu", devices=3, precision="bf16-mixed", **QUIET)

    again = pickle.loads(pickle.dumps(trainer))

    assert type(again.strategy) is IPUStrategy
    assert type(again.accelerator) is IPUAccelerator
    assert (again.num_devices, again.precision) == (3, "bf16-mixed")


def test_ipu_debug_says_why_each_program_is_compiled(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Branches(BoringModel):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)["loss"]
            return loss * 2 if batch_idx == 1 else loss

    trainer = pl.Trainer(strategy="ipu_debug", fast_dev_run=3, **QUIET)
    monkeypatch.setattr(logging.getLogger("lightning.pytorch"), "handlers", [caplog.handler])
    with caplog.at_level("INFO", logger="lightning.pytorch"):
        trainer.fit(Branches())

    told = [line for line in caplog.messages if line.startswith("IPU: compiles training_step")]
    assert [line.partition("program ")[2][:18] for line in dict.fromkeys(told)] == [
        "1 of it: first cal",
        "2 of it: another w",
    ]
