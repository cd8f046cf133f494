"""Run tests that somebody else wrote for Lightning's CPU Trainer on software IPUs instead.

    pytest -p tests.lightning.outside_plugin <folder of Lightning>/tests/tests_pytorch/trainer

Every Trainer on one CPU becomes one on one IPU. The summary tells how many of the passed and failed
tests ran a compiled step: a test that compiles nothing says nothing about us.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.clients.torchvision_ops import declare_missing_ops

declare_missing_ops()  # torchmetrics imports torchvision, also a build of it for GPUs

from lightning.pytorch.trainer.connectors import accelerator_connector  # noqa: E402

import pantile.lightning  # noqa: E402, F401 - registers the accelerator
from pantile.lightning.programs import Programs  # noqa: E402

_compiled = 0
_outcomes: Counter[tuple[str, bool]] = Counter()


def _on_ipu(connector: Any) -> Any:
    signature = inspect.signature(connector)

    @functools.wraps(connector)
    def init(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        plain = given["strategy"] == "auto" and given["num_nodes"] == 1
        if plain and given["accelerator"] in ("auto", "cpu") and given["devices"] in (1, "auto"):
            given.update(accelerator="ipu", devices=1)
        connector(*bound.args, **bound.kwargs)

    return init


def _counted(run: Any) -> Any:
    @functools.wraps(run)
    def counted(*args: Any, **kwargs: Any) -> Any:
        global _compiled
        _compiled += 1
        return run(*args, **kwargs)

    return counted


def pytest_configure(config: pytest.Config) -> None:
    """Exchange the Trainer's default."""
    kind = accelerator_connector._AcceleratorConnector
    kind.__init__ = _on_ipu(kind.__init__)
    Programs.run = _counted(Programs.run)  # type: ignore[method-assign]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Note whether the test ran a compiled step."""
    before = _compiled
    outcome = yield
    failed = "failed" if outcome.excinfo else "passed"  # type: ignore[attr-defined]
    _outcomes[failed, _compiled > before] += 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell."""
    for (what, compiled), count in sorted(_outcomes.items()):
        how = "ran compiled steps" if compiled else "compiled nothing"
        terminalreporter.write_line(f"outside tests: {count} {what}, {how}")
