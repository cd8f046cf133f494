"""A program in simpler operators: run once on fake tensors, and written down again.

layer_norm(x)        ->        mean, sub, mul, rsqrt, …
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import fx

from pantile.errors import Error, ProgramError
from pantile.passes.philox import PHILOX, philox
from pantile.program.program import Program
from pantile.program.tracing import TRACER_LOCK

aten = torch.ops.aten


def inductor_table(without: Collection[Any]) -> dict[Any, Callable[..., Any]]:
    """Inductor's decompositions and that of our own operator, but for some operators."""
    from torch._inductor.decomposition import select_decomp_table

    table = {**select_decomp_table(), PHILOX: philox}
    return {op: rule for op, rule in table.items() if op not in without}


def retraced(
    program: Program, table: Mapping[Any, Callable[..., Any]]
) -> tuple[fx.GraphModule, list[Any], Any]:
    """The program after decomposition; fake inputs for it, and their mode."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    if program.subgraphs:
        raise ProgramError(
            f"the program calls subgraphs ({', '.join(program.subgraphs)}): cond, while_loop and "
            "the like are not compiled",
            fix="nothing: it runs on the reference engine",
        )
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with TRACER_LOCK, torch.no_grad(), mode:
        examples = [_empty_like(node) for node in program.placeholders]
        replay = _Replay(fx.GraphModule(dict(program.constants), program.graph))
        traced = make_fx(replay.run, decomposition_table=dict(table), tracing_mode="real")(
            *examples
        )
    return traced, examples, mode


class _Replay(fx.Interpreter):
    """Runs a program whose tensors may get other strides than eager's, from decompositions."""

    def run_node(self, n: fx.Node) -> Any:
        """What cannot be traced is named."""
        try:
            return super().run_node(n)
        except Error:
            raise
        except Exception as error:
            raise no_code(str(n.target), error) from error

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A view that needs eager's strides is a copy: in a functional program nobody can tell."""
        if target is aten.view.default:
            target = aten.reshape.default
        return super().call_function(target, args, kwargs)


def _empty_like(node: fx.Node) -> torch.Tensor:
    value = node.meta["val"]
    return torch.empty_strided(tuple(value.shape), tuple(value.stride()), dtype=value.dtype)


def no_code(what: str, error: Exception) -> ProgramError:
    """The error of an operator that cannot be compiled."""
    why = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return ProgramError(
        f"there is no code for {what}: {type(error).__name__}: {why[:300]}",
        fix="nothing: it runs on the reference engine",
    )
