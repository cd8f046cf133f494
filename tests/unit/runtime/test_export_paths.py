"""A file may name classes and functions of the model and of torch, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from os import system  # a name that a file must not reach through this module
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from pantile.errors import StoreError
from pantile.runtime.export.decode import Reader
from pantile.runtime.export.paths import Paths, home_of


class Net(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Closes:
    """Something that acts when it is freed, as temporary files do."""

    def __del__(self) -> None:
        pass


def helper() -> None:
    """A function beside the model."""


HERE = __name__


@pytest.mark.parametrize(
    "path",
    [
        "os:system",
        "posix:system",
        "builtins:eval",
        "builtins:exec",
        "builtins:open",
        "builtins:__import__",
        "subprocess:Popen",
        "subprocess:run",
        "shutil:rmtree",
        "importlib:import_module",
        "torch:load",
        "torch:os.system",
        "torch.hub:load",
        "torch.serialization:load",
        "torch.utils.cpp_extension:load_inline",
        "numpy:load",
        "pickle:loads",
        "operator:__dict__",
        f"{HERE}:system",
        f"{HERE}:subprocess.run",
        f"{HERE}:helper.__globals__",
        f"{HERE}:Net.__subclasses__",
        "a b:c",
        "../net:Net",
        "net.py",
        ":Net",
        "net:",
        "",
        None,
        3,
    ],
)
def test_name_is_refused(path: object) -> None:
    with pytest.raises(StoreError):
        Paths([Net]).find(path)


def test_refused_module_is_not_imported() -> None:
    sys.modules.pop("antigravity", None)

    with pytest.raises(StoreError):
        Paths([Net]).find("antigravity:webbrowser")

    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("found", [Net, helper, nn.Linear, torch.relu, nn.functional.relu])
def test_names_of_the_model_and_of_torch_are_taken(found: object) -> None:
    assert Paths([Net]).find(home_of(found)) is found


def test_function_of_another_package_than_the_model_is_refused() -> None:
    with pytest.raises(StoreError, match="not taken from files"):
        Paths([nn.Linear]).find(home_of(helper))


def test_class_that_is_not_a_module_is_refused_as_a_module() -> None:
    with pytest.raises(StoreError, match="not a subclass of Module"):
        Paths([Net]).find_class(home_of(Closes), nn.Module)


def test_missing_module_says_what_to_do() -> None:
    with pytest.raises(StoreError, match="nowhere_at_all") as caught:
        Paths([Net]).find("nowhere_at_all:Net")

    assert "importable" in str(caught.value.fix)


def test_missing_class_of_the_script_says_what_to_do() -> None:
    with pytest.raises(StoreError) as caught:
        Paths([Net]).find("__main__:NoSuchClass")

    assert "script" in str(caught.value.fix)


def test_module_that_is_replaced_by_data_is_refused() -> None:
    fake = sys.modules["fake_net"] = ModuleType("fake_net")
    fake.thing = 3
    try:
        with pytest.raises(StoreError, match="not a class or function"):
            Paths([Net]).find("fake_net:thing")
    finally:
        del sys.modules["fake_net"]


@pytest.mark.parametrize(
    "record",
    [
        ["object", f"{HERE}:Closes", [], None],
        ["object", "subprocess:Popen", [], None],
        ["object", "tempfile:_TemporaryFileCloser", [["name", "precious.txt"]], None],
        ["object", "torch.nn.modules.linear:Linear", [], None],
        ["module", f"{HERE}:Closes", [], False],
        ["optimizer", f"{HERE}:Net", []],
        ["partial", {"r": 1}, ["echo gone"], []],
        ["dict", [], "defaultdict", {"r": 1}],
        ["enum", f"{HERE}:Net", 3],
        ["method", {"r": 2}, "__init_subclass__"],
        ["tuple", [{"r": 0}]],
        ["tuple", [{"r": -1}]],
        ["tuple", [{"r": 10**9}]],
        ["tensor", 0, "parameter", True, []],
        ["input", [2**62, 2**62], "torch.float32"],
        ["input", [1], "load"],
        ["torch", "torch.load"],
        ["range", 1, 2, 0],
        ["bytes", "zz"],
        ["unheard of"],
        [],
        None,
    ],
    ids=str,
)
def test_hostile_record_is_refused_by_an_exception(record: object) -> None:
    records = [record, ["function", "os:system"], ["module", f"{HERE}:Net", [], False]]

    with pytest.raises((StoreError, LookupError, ValueError, TypeError, RuntimeError)):
        Reader(records, [], {}, Paths([Net])).value({"r": 0})


@pytest.mark.parametrize(
    "row",
    [
        ["m0", "torch.float32", 0, [100], [1]],
        ["m0", "torch.float32", 3, [2], [1]],
        ["m0", "torch.float32", -1, [1], [1]],
        ["m0", "torch.float32", 0, [2], [-1]],
        ["m0", "torch.float32", 0, [2**40, 2**40], [2**20, 1]],
        ["m0", "torch.float32", 0, [2], [1, 1]],
        ["m1", "torch.float32", 0, [2], [1]],
        [],
    ],
)
def test_layout_outside_its_memory_is_refused(row: list[object]) -> None:
    memory = {"m0": torch.zeros(16, dtype=torch.uint8)}
    records = [["tensor", 0, "tensor", False, []]]

    with pytest.raises((ValueError, KeyError, TypeError, RuntimeError)):
        Reader(records, [row], memory, Paths()).value({"r": 0})


def test_this_module_has_the_names_the_refusals_are_about() -> None:
    assert callable(system) and callable(subprocess.run) and Path.exists
