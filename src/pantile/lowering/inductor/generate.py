"""Inductor as a code generator: from a prepared Program to C++ text.

Inductor's own way to a shared object ends in `AotCodeCompiler.compile`, which is handed the text of
the kernels and of the host program. While we generate, that one function is exchanged for ours,
which keeps the text; compiling it is `build`'s work.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from pantile.errors import Error
from pantile.lowering.inductor.calls import describe_calls
from pantile.lowering.inductor.host import host_program
from pantile.lowering.inductor.kernels import catch_in_loops
from pantile.lowering.retrace import inductor_table, no_code, retraced
from pantile.program.program import Program
from pantile.program.tracing import TRACER_LOCK
from pantile.store.location import default_folder

aten = torch.ops.aten

# ATen's kernels are several times faster than what Inductor writes for the first two. For the last
# it writes a call without the workspace that the backward needs.
_LEFT_TO_ATEN = frozenset(
    {
        aten.max_pool2d_with_indices.default,
        aten.max_pool2d_with_indices_backward.default,
        aten.mkldnn_rnn_layer.default,
    }
)


@dataclass(frozen=True)
class Settings:
    """What may be chosen for one executable, by timing."""

    channels_last: bool = False
    """Let Inductor choose the layout of convolutions (its `layout_optimization`)."""

    def config(self) -> dict[str, Any]:
        """As Inductor's configuration."""
        return {
            "layout_optimization": self.channels_last,
            "cpp_wrapper": True,
            "cpp.dynamic_threads": True,
            # Its own test is a compilation, and fails in folders whose name has a space.
            "cpp.vec_isa_ok": True,
            # Two passes of sums are faster than one with a division for each number.
            "cpp.use_two_step_variance_threshold": 1 << 30,
            "aot_inductor.output_path": "program",
            "fallback_random": False,
            "comprehensive_padding": False,
            "inplace_padding": False,
            "fx_graph_cache": False,
        }


@dataclass(frozen=True)
class Sources:
    """The text of one program."""

    kernels: str
    host: str
    calls: list[Mapping[str, Any]]
    """Functions that have no C interface and are called through Python."""


def generate(program: Program, settings: Settings) -> Sources:
    """The C++ of a Program whose inputs are all tensors; ProgramError if there is none."""
    _keep_caches_home()
    # Inductor traces too, and the functions we exchange in it are of the whole process.
    with TRACER_LOCK, warnings.catch_warnings(), _quiet_inductor():
        warnings.simplefilter("ignore")
        try:
            return _generate(program, settings)
        except Error:
            raise
        except Exception as error:
            raise _explained(error) from error


@contextmanager
def _quiet_inductor() -> Iterator[None]:
    """Keep its warnings (an operator without a C function, say) out of the user's terminal."""
    log = logging.getLogger("torch._inductor")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _explained(error: Exception) -> Error:
    """Inductor's error as one line that names the operator, if it knows which."""
    inner = getattr(error, "inner_exception", error)  # it wraps what its passes raise
    if isinstance(inner, Error):
        return inner
    operator = re.search(r"^\s*target: (\S+)", str(inner), re.MULTILINE)
    return no_code(operator[1] if operator else "the program", inner)


def _generate(program: Program, settings: Settings) -> Sources:
    from torch._inductor import config
    from torch._inductor.compile_fx import _recursive_joint_graph_passes, compile_fx_inner
    from torch._inductor.virtualized import V

    module, examples, mode = retraced(program, inductor_table(_LEFT_TO_ATEN))
    taken: dict[str, Any] = {}
    with ExitStack() as scope:
        scope.enter_context(torch.no_grad())
        scope.enter_context(config.patch(settings.config()))
        scope.enter_context(V.set_aot_compilation(True))
        scope.enter_context(mode)
        scope.enter_context(V.set_fake_mode(mode))
        scope.enter_context(_taking_sources(taken))
        scope.enter_context(_quick_simplify())
        scope.enter_context(_left_to_aten())
        module = _recursive_joint_graph_passes(module, input_device=torch.device("cpu")) or module
        compile_fx_inner(
            module,
            examples,
            cpp_wrapper=True,
            aot_mode=True,
            is_inference=True,
            static_input_idxs=range(len(examples)),
        )
    host = host_program(taken["wrapper"], len(program.outputs))
    return Sources(catch_in_loops(taken["kernels"]), host, taken["calls"])


@contextmanager
def _taking_sources(taken: dict[str, Any]) -> Iterator[None]:
    from torch._inductor import codecache
    from torch._inductor.virtualized import V

    def take(graph: Any, wrapper_code: str, kernel_code: str, *_: Any, **__: Any) -> list[str]:
        calls = describe_calls(V.extern_kernel_nodes)
        taken.update(wrapper=wrapper_code, kernels=kernel_code, calls=calls)
        return []

    compiler: Any = codecache.AotCodeCompiler
    before = compiler.__dict__["compile"]
    compiler.compile = staticmethod(take)
    try:
        yield
    finally:
        compiler.compile = before


@contextmanager
def _left_to_aten() -> Iterator[None]:
    from torch._inductor import lowering

    lowerings: dict[Any, Any] = lowering.lowerings
    fallback: Any = lowering.fallback_handler
    before = {op: lowerings[op] for op in _LEFT_TO_ATEN if op in lowerings}
    lowerings.update({op: fallback(op, add_to_fallback_set=False) for op in _LEFT_TO_ATEN})
    try:
        yield
    finally:
        lowerings.update(before)


@contextmanager
def _quick_simplify() -> Iterator[None]:
    """Half of Inductor's time goes into simplifying indices, mostly in vain.

    Sums of products need only be expanded, a hundred times sooner; and of what a pooling window
    makes (`Min` of quotients) nothing becomes simpler.
    """
    import sympy
    from torch.utils._sympy.functions import Max, Min

    def quick(expression: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(expression, sympy.Expr) and not args and not kwargs:
            if all(isinstance(part, polynomial) for part in sympy.preorder_traversal(expression)):
                return sympy.expand(expression)
            if expression.has(Min, Max):
                return expression
        return before(expression, *args, **kwargs)

    polynomial = (sympy.Symbol, sympy.Integer, sympy.Add, sympy.Mul)
    before, sympy.simplify = sympy.simplify, quick
    try:
        yield
    finally:
        sympy.simplify = before


def _keep_caches_home() -> None:
    """Inductor writes small probes of the CPU: beside our own cache, not into the system's /tmp."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(default_folder() / "inductor"))
