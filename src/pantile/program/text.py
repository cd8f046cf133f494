"""The text form of a Program: print it, parse it, compare by it.

text = print_program(program)
equal(parse_program(text, constants_of(program)), program)   # True
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pantile.program.digest import digest_of
from pantile.program.effects import modules_of
from pantile.program.parse_text import parse_program
from pantile.program.print_text import Style, print_program, render
from pantile.program.program import Program

__all__ = ["constants_of", "equal", "parse_program", "print_program"]


def equal(left: Program, right: Program) -> bool:
    """True if two Programs have the same nodes, signature, guards, tags and constants, bit for bit.

    The value a Python number had while tracing is no part of a Program and is not compared.
    """
    style = Style(inline=-1)
    texts = [[line.text for line in render(program, style)] for program in (left, right)]
    return texts[0] == texts[1]


def constants_of(program: Program) -> dict[str, torch.Tensor]:
    """Every constant of a Program and its subgraphs by its digest, for `parse_program`."""
    return {digest_of(tensor): tensor for tensor in _all_constants(program)}


def _all_constants(program: Program) -> Iterator[torch.Tensor]:
    yield from program.constants.values()
    for module in program.subgraphs.values():
        for inner in (module, *modules_of(module).values()):
            yield from inner.buffers(recurse=False)
            yield from inner.parameters(recurse=False)
            yield from (v for v in vars(inner).values() if isinstance(v, torch.Tensor))
