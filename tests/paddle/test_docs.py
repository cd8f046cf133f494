"""The blocks of docs/paddle.md run, in the order a reader meets them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paddle
import pytest
from tests.docs.test_code_blocks import ROOT, blocks_of, run

import pantile.paddle
from pantile.paddle import unregister_operator


@pytest.fixture(autouse=True)
def stock_paddle() -> Iterator[None]:
    yield
    pantile.paddle.uninstall()
    unregister_operator("scaled_tanh")
    paddle.enable_static()


def test_python_blocks_of_the_page_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    page, printed = ROOT / "docs" / "paddle.md", ""
    # Paddle asks where a traced layer's source is, and looks it up by module.
    blocks = blocks_of(page)

    for block in blocks:
        if block.language == "python":
            printed = run(block, namespace)
        elif block.language == "output":
            assert printed.strip() == block.source.strip(), f"{page.name}:{block.line}"
    assert any(block.language == "output" for block in blocks)
