"""Quiet runs, with one device unless a test asks for more."""

from __future__ import annotations

import logging
import os
import warnings

import pytest

os.environ.setdefault("PANTILE_LIGHTNING_DEVICES", "1")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """Lightning is talkative; tests that want its words ask for them."""
    for name in ("lightning.pytorch", "pytorch_lightning", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    monkeypatch.chdir(str(tmp_path))


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine that has the bits of eager PyTorch."""
    monkeypatch.setenv("PANTILE_ENGINE", "reference")
