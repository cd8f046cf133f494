"""One executable cache for the whole folder: what one test compiles, no other compiles again.

`NATIVE_TEST_CACHE=folder` keeps it for the next run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native.runs import Compilations


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder; the same one in all workers of a run."""
    if named := os.environ.get("NATIVE_TEST_CACHE"):
        return Path(named)
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "native-cache"


@pytest.fixture(autouse=True)
def _use_shared_cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(shared_cache))


@pytest.fixture
def compilations() -> Iterator[Compilations]:
    """What was compiled and what was found in the cache, from the log."""
    heard = Compilations()
    logger = logging.getLogger("poptorch::python")
    before = logger.level
    logger.addHandler(heard)
    logger.setLevel(logging.DEBUG)
    yield heard
    logger.setLevel(before)
    logger.removeHandler(heard)
