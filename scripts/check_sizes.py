"""Fail when a Python function or file is longer than a reader can hold in mind.

scripts/check_sizes.py src tests examples
src/pantile/runtime/executor.py:120: function run_step has 74 lines (at most 60)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FUNCTION_LINES = 60
FILE_LINES = 500


def oversized(path: Path) -> Iterator[str]:
    """Yield one message for each thing in the file that is too long."""
    text = path.read_text(encoding="utf-8")
    lines = len(text.splitlines())
    if lines > FILE_LINES:
        yield f"{path}: file has {lines} lines (at most {FILE_LINES})"
    for node in ast.walk(ast.parse(text, filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                yield (
                    f"{path}:{node.lineno}: function {node.name} has {length} lines "
                    f"(at most {FUNCTION_LINES})"
                )


def main(folders: list[str]) -> int:
    """Check every Python file below the folders; return the exit code."""
    files = sorted(file for folder in folders for file in Path(folder).rglob("*.py"))
    messages = [message for file in files for message in oversized(file)]
    print("\n".join(messages) if messages else f"{len(files)} files, none too long")
    return bool(messages)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
