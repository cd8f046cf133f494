"""A report of a small pipeline, and a Chromium that fails the test on any error or request.

CHROMIUM names the browser; scripts/test-browser finds the one of the distribution.
"""

from __future__ import annotations

import json
import os

import pytest
import torch
from tests.report.programs import Pipeline

import poptorch
from pantile.report_page import page as page_of


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The folder of a report with four IPUs, sixteen micro-batches and Adam."""
    path = tmp_path_factory.mktemp("report")
    options = poptorch.Options().engine("reference").showCompilationProgressBar(False)
    options.enableProfiling(str(path))
    options.Training.gradientAccumulation(16)
    model = Pipeline(layers=8, width=64)
    adam = poptorch.optim.Adam(model.parameters(), lr=0.001)
    training = poptorch.trainingModel(model, options, optimizer=adam)
    training(torch.zeros(16 * 8, 64))
    training.detachFromDevice()
    return path / "training"


@pytest.fixture(scope="session")
def report(folder):
    return json.loads((folder / "report.json").read_text())


@pytest.fixture(scope="session")
def large(report, tmp_path_factory):
    """The page of a program of 10 000 ops."""
    count = 10_000
    ops = [{**report["ops"][i % len(report["ops"])], "id": i} for i in range(count)]
    once = report["liveness"][0]
    times = range(count)
    alive = {
        **once,
        "ops": list(times),
        "bytes": [once["bytes"][i % len(once["bytes"])] for i in times],
        "temporary": [once["temporary"][i % len(once["temporary"])] for i in times],
        "lifetimes": [[i, i, min(count - 1, i + 9), 1000 + i] for i in times],
    }
    path = tmp_path_factory.mktemp("large") / "report.html"
    path.write_text(page_of({**report, "ops": ops, "liveness": [alive, *report["liveness"][1:]]}))
    return path


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=os.environ["CHROMIUM"],
            # Chromium's own sandbox cannot be set up by root in a container.
            args=["--no-sandbox"] if os.geteuid() == 0 else [],
        )
        yield started
        started.close()


@pytest.fixture
def open_page(browser):
    """Open a file at a size; afterwards nothing may have been logged or asked for."""
    contexts, problems = [], []

    def opened(path, *, width=1280, height=900, dark=False, view="overview"):
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            accept_downloads=True,
        )
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
        local = ("file:", "blob:", "data:")
        tab.on("request", lambda r: None if r.url.startswith(local) else problems.append(r.url))
        tab.goto(f"{path.as_uri()}#{view}")
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert problems == []
