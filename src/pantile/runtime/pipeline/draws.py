"""Random numbers in a pipeline: the very numbers the unsplit program draws.

    unsplit      micro-batch 0: a b c    micro-batch 1: a b c        one generator, in this order
    pipeline     0: a    1: a  0: b    1: b  0: c …                  another order

Before the micro-batches run, each draw is made once on stand-ins of the same shapes, in the order
of the unsplit program, and the state of the generator before it is noted. In the pipeline every
draw starts from its own state. That needs draws that consume the generator by shape, not by value;
`unpredictable` names one that does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from pantile.program.effects import is_random
from pantile.program.program import Program
from pantile.runtime.random import generator_in_use

States = Mapping[str, torch.Tensor]
"""The state of the generator before each draw of a micro-batch, by the node's name."""

_BY_SHAPE = frozenset(
    f"aten::{name}"
    for name in (
        "bernoulli", "exponential", "native_dropout", "normal", "normal_functional", "rand",
        "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "uniform",
    )
)  # fmt: skip


class _Current(threading.local):
    states: States | None = None


_current = _Current()


@contextmanager
def drawing(states: States | None) -> Iterator[None]:
    """Draws on this thread start from these states; without, from wherever the generator is."""
    _current.states = states
    try:
        yield
    finally:
        _current.states = None


class Draws:
    """The nodes of a program that draw random numbers."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.nodes = [n for n in program.graph.nodes if is_random(n, program.subgraphs)]
        self.replacements: dict[str, Callable[..., Any]] = {
            node.name: _replacement(node.name, node.target) for node in self.nodes
        }

    @property
    def unpredictable(self) -> str:
        """Why draws cannot be prepared; empty if they can."""
        for node in self.nodes:
            known = isinstance(node.target, OpOverload) and node.target._schema.name in _BY_SHAPE
            if not known:
                return f"how many random numbers {node.target} takes depends on its values"
        return ""

    def note_states(self) -> States:
        """Make all draws of one micro-batch on stand-ins; the states before each."""
        states = {}
        for node in self.nodes:
            states[node.name] = torch.get_rng_state()
            args, kwargs = fx.map_arg((node.args, node.kwargs), self._stand_in)
            with torch.no_grad():
                node.target(*args, **kwargs)
        return states

    def _stand_in(self, node: fx.Node) -> Any:
        if node.op == "get_attr":
            return self._program.constants[str(node.target)]
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).zero_()


def _replacement(name: str, target: Callable[..., Any]) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        if _current.states is None:
            return target(*args, **kwargs)
        with generator_in_use:
            outside = torch.get_rng_state()
            torch.set_rng_state(_current.states[name])
            try:
                return target(*args, **kwargs)
            finally:
                torch.set_rng_state(outside)

    return draw
