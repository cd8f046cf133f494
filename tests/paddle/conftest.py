"""These tests need the Paddle wheel: `scripts/test-paddle` runs them in an environment with it."""

from __future__ import annotations

import os

os.environ.setdefault("PANTILE_PADDLE_INSTALL", "0")  # each test installs what it tests

from collections.abc import Iterator

import paddle
import pytest


@pytest.fixture(autouse=True)
def static_mode() -> Iterator[None]:
    """Static mode, an empty scope, fresh default programs and names."""
    paddle.enable_static()
    main, startup = paddle.static.Program(), paddle.static.Program()
    with (
        paddle.static.scope_guard(paddle.static.Scope()),
        paddle.static.program_guard(main, startup),
        paddle.utils.unique_name.guard(),
    ):
        paddle.seed(0)
        yield
    paddle.enable_static()
