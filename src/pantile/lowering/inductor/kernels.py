"""Kernels whose checks are errors in Python, not the end of the process.

    #pragma omp for                          #pragma omp for
    for (x0 …)                               for (x0 …)
    {                                 ->     {
        AOTI_TORCH_CHECK(index …);               try {
        …                                            AOTI_TORCH_CHECK(index …);
    }                                                …
                                                 } catch (...) { pantile_caught.note(); }
                                             }
                                             pantile_caught.rethrow();     at the end of the kernel

Inductor's kernels check indices (a label that is no class, a word that is not in the table) by
throwing, and what is thrown inside a parallel loop of OpenMP must be caught there.
"""

from __future__ import annotations

import re

_PARALLEL = re.compile(r"\s*#pragma omp for(?: collapse\((\d+)\))?")
_SINGLE = re.compile(r"\s*#pragma omp single")
_THROWS = re.compile(r"TORCH_CHECK\(|_integral\(")
_CAUGHT = """
#ifndef PANTILE_CAUGHT
#define PANTILE_CAUGHT
#include <atomic>
#include <exception>
struct PantileCaught {
  std::atomic<bool> taken{false};
  std::exception_ptr first;
  void note() {
    if (!taken.exchange(true)) first = std::current_exception();
  }
  void rethrow() {
    if (first) std::rethrow_exception(first);
  }
};
#endif
"""


def catch_in_loops(kernels: str) -> str:
    """The text of kernels, with parallel loops that hand on what is thrown in them."""
    lines = kernels.splitlines()
    written: list[str] = []
    function = 0  # where the kernel that is being written begins
    i = 0
    while i < len(lines):
        line = lines[i]
        if line.startswith('extern "C"'):
            function = len(written)
        blocks = _blocks(line)
        begin = _body(lines, i, blocks) if blocks else 0
        end = _end(lines, begin) if begin else 0
        if end and any(_THROWS.search(text) for text in lines[begin:end]):
            written += [*lines[i:begin], "try {", *lines[begin:end], _CATCH]
            i = end
            continue
        written.append(line)
        if line == "}" and _CATCH in written[function:]:
            _finish(written, function)
        i += 1
    return "\n".join(written) + "\n"


_CATCH = "} catch (...) { pantile_caught.note(); }"


def _blocks(line: str) -> int:
    """How many braces are to be opened before what threads do; 0 if the line is another one."""
    loop = _PARALLEL.match(line)
    if loop:
        return int(loop[1] or 1)
    return 1 if _SINGLE.match(line) else 0


def _body(lines: list[str], start: int, blocks: int) -> int:
    """Where the innermost of the loops begins that are divided among threads."""
    for i in range(start + 1, len(lines)):
        if lines[i].strip() == "{":
            blocks -= 1
            if not blocks:
                return i + 1
        elif not lines[i].lstrip().startswith(("for", "#pragma")):
            break
    return 0


def _end(lines: list[str], begin: int) -> int:
    """Where the brace is closed that was opened before `begin`."""
    closing = lines[begin - 1].replace("{", "}")
    return next((i for i in range(begin, len(lines)) if lines[i] == closing), 0)


def _finish(written: list[str], function: int) -> None:
    """A kernel with parallel loops is complete but for what was caught in them."""
    written.insert(-1, "    pantile_caught.rethrow();")
    opening = written.index("{", function)
    written.insert(opening + 1, "    PantileCaught pantile_caught;")
    written.insert(function, _CAUGHT)
