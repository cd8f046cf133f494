"""The executable cache, seen from the executor: nothing is compiled twice, nothing bad loaded."""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.native.runs import (
    Compilations,
    batch,
    momentum,
    options,
    run_script,
    runs_natively,
    seeded,
)

import poptorch
from pantile.cli.main import main
from pantile.runtime.native.step_programs import fused_step
from pantile.store.cache import ExecutableCache

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def training(
    folder: Path | None, iterations: int = 2, *, strict: bool = False
) -> poptorch.PoplarExecutor:
    model = seeded()
    chosen = options(deviceIterations=iterations, strict=strict)
    if folder is not None:
        chosen.enableExecutableCaching(str(folder))
    return poptorch.trainingModel(model, chosen, momentum(model.parameters()))


def trained(folder: Path | None) -> list[torch.Tensor]:
    """The weights after some steps."""
    step = training(folder)
    for _ in range(3):
        step(*batch(2))
    assert runs_natively(step)
    return [p.detach().clone() for p in step.parameters()]


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def filled(
    tmp_path_factory: pytest.TempPathFactory, shared_cache: Path
) -> tuple[Path, list[torch.Tensor]]:
    """A folder with the executable of one model, compiled there, and the weights it trains to."""
    folder = tmp_path_factory.mktemp("filled") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PANTILE_CACHE_DIR", str(shared_cache))
        torch.set_num_threads(1)
        step = training(folder)
        step(*batch(2))
    assert len(files(folder)) == 1  # after the first call, and nothing else is there
    return folder, trained(folder)


@pytest.fixture
def folder(filled: tuple[Path, Sequence[torch.Tensor]], tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(filled[0], tmp_path / "cache", copy_function=shutil.copy2))


@pytest.fixture
def file(folder: Path) -> Path:
    return files(folder)[0]


def test_there_is_one_file_for_each_distinct_graph(
    folder: Path, file: Path, compilations: Compilations
) -> None:
    for iterations in (1, 2, 5):
        training(folder, iterations)(*batch(iterations))

    assert files(folder) == [file]
    assert (compilations.compiled, compilations.count("found")) == (0, 3)
    assert oct(file.stat().st_mode & 0o777) == "0o600"


def test_an_explicit_folder_is_filled_by_the_first_call(
    folder: Path, compilations: Compilations
) -> None:
    """A call of one iteration, which runs on the reference engine."""
    training(folder, 1)(*batch(1))

    assert compilations.used == 1


def test_another_executor_compiles_nothing_and_computes_the_same(
    filled: tuple[Path, Sequence[torch.Tensor]], folder: Path, compilations: Compilations
) -> None:
    assert all(map(torch.equal, trained(folder), filled[1]))

    assert compilations.compiled == 0


IN_ANOTHER_PROCESS = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.native.test_cache import trained
folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
torch.save(trained(folder), sys.stdout.buffer)
"""


def test_another_process_compiles_nothing_and_computes_the_same(
    filled: tuple[Path, Sequence[torch.Tensor]], folder: Path, tmp_path: Path
) -> None:
    script = IN_ANOTHER_PROCESS.replace("sys.stdout.buffer", repr(str(tmp_path / "weights")))
    before = [(path, path.stat().st_ino) for path in files(folder)]

    log = tmp_path / "log"
    run_script(script, str(folder), POPTORCH_LOG_LEVEL="DEBUG", POPTORCH_LOG_DEST=str(log))

    weights = torch.load(tmp_path / "weights", weights_only=True)
    assert all(map(torch.equal, weights, filled[1]))
    assert [(path, path.stat().st_ino) for path in files(folder)] == before
    assert "found" in log.read_text()
    assert "compiled" not in log.read_text()


def test_poptorch_cache_dir_names_the_folder(
    folder: Path, compilations: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(folder))

    training(None)(*batch(2))

    assert (compilations.compiled, compilations.count("found")) == (0, 1)


def test_no_flipped_bit_is_overlooked(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "poptorch::python")
    good, key = file.read_bytes(), file.stem
    cache = ExecutableCache(file.parent, limit_bytes=None)
    assert cache.find(key) is not None

    for bit in random.Random(0).sample(range(8 * len(good)), 200):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)
        assert cache.find(key) is None, f"bit {bit}"

    file.write_bytes(good)
    assert cache.find(key) is not None


def test_a_damaged_entry_is_compiled_again(
    filled: tuple[Path, Sequence[torch.Tensor]],
    folder: Path,
    file: Path,
    compilations: Compilations,
) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)

    weights = trained(folder)

    assert compilations.compiled == 1
    assert [line for line in compilations.lines if "built again" in line and str(file) in line]
    assert all(map(torch.equal, weights, filled[1]))
    assert ExecutableCache(folder, limit_bytes=None).find(file.stem) is not None


@needs_root
def test_an_entry_of_another_user_is_not_loaded(file: Path) -> None:
    os.chown(file, 12345, 12345)

    assert ExecutableCache(file.parent, limit_bytes=None).find(file.stem) is None
    assert file.exists()


def test_an_entry_that_others_can_write_is_not_loaded(file: Path) -> None:
    file.chmod(0o666)

    assert ExecutableCache(file.parent, limit_bytes=None).find(file.stem) is None


def test_a_folder_that_others_can_write_is_not_used(folder: Path, file: Path) -> None:
    folder.chmod(0o777)

    assert ExecutableCache(folder, limit_bytes=None).find(file.stem) is None


def test_the_key_depends_on_the_threads_and_on_nothing_that_changes(folder: Path) -> None:
    step = training(folder)
    step(*batch(2))
    (((compiled, update), native),) = step._native._steps.items()

    keys = [fused_step(compiled, update).key(threads) for threads in (1, 2, 1)]

    assert keys[0] == keys[2] == native.entry.key
    assert keys[0] != keys[1]


def test_decisions_are_recorded_with_their_times(folder: Path, file: Path) -> None:
    entry = ExecutableCache(folder, limit_bytes=None).find(file.stem)

    assert entry is not None
    assert entry.header["name"] == "Net training"
    assert entry.header["seconds"] > 0
    assert entry.header["surroundings"]["torch"] == torch.__version__
    body = entry.header["programs"]["body"]
    assert body["threads"] == 1
    assert body["microseconds"]["1"] > 0


def test_the_command_line_lists_and_clears(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", "list", "--dir", str(folder)]) == 0
    assert "Net training" in capsys.readouterr().out

    assert main(["cache", "clear", "--dir", str(folder)]) == 0
    assert files(folder) == []


@pytest.fixture
def empty_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A default cache with nothing in it: whatever is not offered must be compiled."""
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(tmp_path / "empty"))
    return tmp_path / "empty"


def nothing_compiled(default: Path, compilations: Compilations) -> bool:
    return compilations.used == 0 and not list(default.glob("*.pantile"))


@pytest.mark.parametrize("strict", [False, True])
def test_a_saved_executor_goes_on_elsewhere_without_compiling(
    strict: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: Compilations
) -> None:
    step = training(None, strict=strict)
    for _ in range(2):
        step(*batch(2))
    step.save(tmp_path / "file")
    compilations.lines.clear()
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(tmp_path / "empty"))

    loaded = poptorch.load(tmp_path / "file")

    for seed in range(3):
        assert torch.equal(loaded(*batch(2, seed=seed))[1], step(*batch(2, seed=seed))[1])
    assert all(map(torch.equal, loaded.parameters(), step.parameters()))
    assert runs_natively(loaded)
    assert nothing_compiled(tmp_path / "empty", compilations)


def test_an_exported_executor_was_never_run_and_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: Compilations
) -> None:
    training(None).compileAndExport(tmp_path / "file", *batch(2))
    straight = training(None)
    expected = [straight(*batch(2, seed=seed))[1] for seed in range(3)]
    compilations.lines.clear()
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(tmp_path / "empty"))

    loaded = poptorch.load(tmp_path / "file")

    assert [loaded(*batch(2, seed=seed))[1] for seed in range(3)] == expected
    assert runs_natively(loaded)
    assert nothing_compiled(tmp_path / "empty", compilations)


def test_programs_of_a_file_serve_a_model_that_is_wrapped_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compilations: Compilations
) -> None:
    training(None).compileAndExport(tmp_path / "file", *batch(2), export_model=False)
    straight = training(None)
    expected = [straight(*batch(2, seed=seed))[1] for seed in range(3)]
    compilations.lines.clear()
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(tmp_path / "empty"))
    step = training(None)

    step.loadExecutable(tmp_path / "file")

    assert [step(*batch(2, seed=seed))[1] for seed in range(3)] == expected
    assert runs_natively(step)
    assert nothing_compiled(tmp_path / "empty", compilations)
