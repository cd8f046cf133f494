"""The README, the Makefile and the installed distributions agree."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_readme_gives_a_fresh_machine_exactly_two_commands() -> None:
    section = (ROOT / "README.md").read_text().split("## Two commands")[1]
    first_block = re.search(r"```console\n(.*?)```", section, re.S)

    assert first_block is not None
    assert first_block[1].splitlines() == ["make demo", "make test"]


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.M)

    assert phony is not None
    listed = set(re.findall(r'@echo "make (\w+) ', makefile))
    assert listed == set(phony[1].split()) - {"help"}


def test_links_of_the_top_level_pages_lead_somewhere() -> None:
    for page in ROOT.glob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (ROOT / target).exists(), f"{page.name}: {target}"


def test_programs_that_require_poptorch_3_3_find_it() -> None:
    version = importlib.metadata.version("poptorch")

    assert tuple(map(int, version.split("."))) >= (3, 3, 0)


def test_the_changelog_describes_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()
    assert importlib.metadata.version("pantile") == project["version"]
