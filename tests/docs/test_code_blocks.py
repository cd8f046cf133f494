"""Every Python block of the documentation runs, in the order a reader meets it.

The blocks of one page share a namespace, as if typed into one session, and run in an empty folder.
A block fenced as ```python is run, and one fenced as ```output must be what the block before it
printed. Shell lines and drawings are fenced as ```console and ```text; no marker skips a block.

A block that shows a mistake says which error it must raise, in its first line:

    ```python
    # raises: InputMismatch
    model(torch.ones(3))
    ```
"""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {ROOT / "docs" / "paddle.md"}  # needs the Paddle wheel: tests/paddle runs its blocks
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").rglob("*.md")} - ELSEWHERE)]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```", re.M | re.S
)
RAISES = re.compile(r"\A# raises: (?P<name>\w+)\n")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    source: str

    def compiled(self) -> Any:
        """The code, with empty lines in front so that a traceback shows the page's own lines."""
        return compile("\n" * self.line + self.source, str(self.page), "exec")


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        indent = match["indent"]
        lines = [line.removeprefix(indent) for line in match["body"].splitlines()]
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, match["language"], "\n".join(lines) + "\n"))
    return found


def run(block: Block, namespace: dict[str, Any]) -> str:
    """Run a block, return what it printed; a `raises` block must raise that error or a subclass."""
    printed = io.StringIO()
    announced = RAISES.match(block.source)
    with contextlib.redirect_stdout(printed):
        if announced is None:
            exec(block.compiled(), namespace)
            return printed.getvalue()
        try:
            exec(block.compiled(), namespace)
        except BaseException as error:
            names = [cls.__name__ for cls in type(error).__mro__]
            if announced["name"] not in names:
                raise
            return printed.getvalue()
    pytest.fail(f"{block.page.name}:{block.line} did not raise {announced['name']}")


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_python_blocks_of_the_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = ""

    for block in blocks_of(page):
        if block.language == "python":
            printed = run(block, namespace)
        elif block.language == "output":
            assert printed.strip() == block.source.strip(), f"{page.name}:{block.line}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_fence_names_its_language(page: Path) -> None:
    unnamed = [block.line for block in blocks_of(page) if not block.language]

    assert unnamed == []
