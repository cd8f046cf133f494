"""Options read the environment when they are made: give every test an empty one."""

from __future__ import annotations

import pytest

VARIABLES = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PANTILE_ENGINE",
    "POPTORCH_CACHE_DIR",
    "POPTORCH_DEFAULT_OPTIONS",
    "POPTORCH_IPU_MODEL",
    "POPTORCH_IPU_MODEL_VERSION",
    "POPTORCH_SMALL_IPU_MODEL",
    "POPTORCH_STRICT",
)


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
