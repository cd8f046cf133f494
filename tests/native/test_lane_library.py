"""The short way in C++ as a library: built beside calls, missing without harm, and its parts."""

from __future__ import annotations

import ctypes
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.native.lane_models import EDITS, Scaled, in_lane
from tests.native.runs import assert_close, batch, options

import poptorch
from pantile.runtime import hot_call
from pantile.runtime.native import engine, lane_library
from pantile.runtime.native.lane_library import LANE, LaneLibrary


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LaneLibrary]:
    """A process that has not looked for it yet, with an empty cache."""
    library = LaneLibrary()
    for module in (hot_call, engine):
        monkeypatch.setattr(module, "LANE", library)
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(tmp_path / "cache"))
    yield library
    library.wait()


def check_calls(executor: Any, module: Scaled) -> None:
    for i in range(5):
        x = batch()[0] + i
        assert_close(executor(x), (x * module.scale).detach())


def test_without_headers_calls_stay_in_python(
    fresh: LaneLibrary, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paths = {**sysconfig.get_paths(), "include": str(tmp_path)}
    monkeypatch.setattr(lane_library.sysconfig, "get_paths", lambda: paths)
    module = Scaled()
    executor = poptorch.inferenceModel(module, options())

    check_calls(executor, module)

    assert executor._hot is not None and not in_lane(executor)
    assert fresh.wait() is None


def test_without_a_compiler_calls_stay_in_python(
    fresh: LaneLibrary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    assert fresh.wait() is None
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_it_is_built_while_calls_go_on(fresh: LaneLibrary, tmp_path: Path) -> None:
    module = Scaled()
    executor = poptorch.inferenceModel(module, options())
    check_calls(executor, module)
    hot = executor._hot

    assert fresh.wait() is not None
    check_calls(executor, module)

    assert executor._hot is hot and in_lane(executor)
    again = LaneLibrary()
    again.ask()  # a second process finds it at once
    assert again.module is not None


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_while_it_is_built_is_seen(
    monkeypatch: pytest.MonkeyPatch, edit: Callable[[Scaled], None]
) -> None:
    waiting = LaneLibrary()
    waiting._asked = True
    monkeypatch.setattr(hot_call, "LANE", waiting)
    x, module = batch()[0], Scaled()
    executor = poptorch.inferenceModel(module, options())
    for _ in range(4):
        executor(x)
    assert not in_lane(executor)

    edit(module)
    waiting.module = LANE.wait()

    for _ in range(4):
        assert_close(executor(x), (x * module.scale).detach())
    assert in_lane(executor)


# Its parts


def test_tables_notice_every_change() -> None:
    a, b = object(), object()
    table: dict[str, object] = {"a": a, "b": b}
    listed = [a, b]
    empty: dict[str, object] = {}
    same = LANE.wait().Tables([table, listed, empty])
    assert same()

    table["b"] = a
    assert not same()
    table["b"] = b
    assert same()
    listed.append(a)
    assert not same()
    listed.pop()
    listed[0] = b
    assert not same()
    listed[0] = a
    empty["c"] = a
    assert not same()
    del empty["c"]
    assert same()
    del table["a"]
    assert not same()


def test_tables_are_dicts_and_lists() -> None:
    with pytest.raises(TypeError, match="dicts and lists"):
        LANE.wait().Tables([{1}])
    with pytest.raises(TypeError):
        LANE.wait().Tables(3)


def test_a_tensor_that_cannot_be_found_is_an_error() -> None:
    word = ctypes.c_void_p(12345)
    with pytest.raises(RuntimeError, match="laid out"):
        LANE.wait().find_tensor(torch._C.TensorBase, torch.zeros(2), ctypes.addressof(word))
