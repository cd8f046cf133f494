"""The reference engine: Python generated from the graph, calling the kernels that eager calls.

    def run(v):
        fc_weight, x, = v
        t = _f0(fc_weight)
        addmm = _f1(_c0, x, t); t = None      # freed after its last use
        return (addmm,)

No compile step, and the same bits as eager PyTorch: the oracle for every other engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import fx

from pantile.errors import Error, ExecutionError, combined
from pantile.lowering import float_checks
from pantile.program.advice import advise, describe
from pantile.program.program import Program, tag_of
from pantile.program.spec import InputKind

_FILE = "<pantile reference {}>"


_BACKWARDS_WITH_WORKSPACE = (torch.ops.aten.mkldnn_rnn_layer_backward.default,)
"""Also in programs of steps that call backward themselves."""


class ReferenceExecutable:
    """A Program as a Python function."""

    def __init__(
        self,
        program: Program,
        *,
        instead: Mapping[str, Callable[..., Any]] | None = None,
        checked: bool = False,
    ) -> None:
        """`instead` holds functions to call in the place of operators, by the name of the node.

        A `checked` one stops at the operator that makes an infinity or a NaN.
        """
        self.program = program
        # A piece of a program is named after it: gradients-0F.
        self._records = program.name.partition("-")[0] in ("gradients", "fused") or any(
            node.target in _BACKWARDS_WITH_WORKSPACE for node in program.graph.nodes
        )
        self._file = _FILE.format(program.name)
        self._instead = dict(instead or {})
        self._checked = checked

    @cached_property
    def _written(self) -> tuple[_Writer, Any]:
        """The text and the function, made for the first run: a native engine needs few of them."""
        writer = _Writer(self.program, self._instead, checked=self._checked)
        return writer, writer.build(self._file)

    @property
    def source(self) -> str:
        """The generated code."""
        return self._written[0].text

    def run(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Run the program on these inputs."""
        function = self._written[1]
        try:
            # Inputs carry no gradients, so nothing is recorded; but some kernels (oneDNN's RNN)
            # keep what backward needs only while gradients are enabled, as in an eager step.
            with torch.set_grad_enabled(self._records):
                result: tuple[Any, ...] = function(values)
            return result
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError) as error:
            if isinstance(error, Error):
                raise
            raise self._explained(error) from error

    def _explained(self, error: Exception) -> Error:
        """Name the op and the user's line that an error comes from."""
        node = None
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self._file:
                node = self._written[0].lines.get(trace.tb_lineno)
            trace = trace.tb_next
        if node is None:
            return combined(ExecutionError, type(error))(str(error), fix=advise(str(error), {}))
        operands = ", ".join(str(_spec(n.meta.get("val"))) for n in node.all_input_nodes)
        given = {e.name: e.spec for e in self.program.inputs if e.kind is InputKind.ARGUMENT}
        return combined(ExecutionError, type(error))(
            f"{node.target} failed: {error}\n  operands: {operands}\n"
            f"  arguments of one micro-batch: {describe(given)}",
            fix=advise(str(error), given),
            location=tag_of(node).source,
        )


class _Writer:
    """Writes the function."""

    def __init__(
        self, program: Program, instead: Mapping[str, Callable[..., Any]], *, checked: bool
    ) -> None:
        self._program = program
        self._instead = instead
        self._checked = checked
        self._globals: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self.lines: dict[int, fx.Node] = {}
        self.text = ""

    def build(self, file: str) -> Any:
        last_users = self._last_uses()
        rows = ["def run(v):"]
        placeholders = "".join(f"{_name(node)}, " for node in self._program.placeholders)
        rows.append(f"    {placeholders}= v" if placeholders else "    pass")
        rows.append("    del v")
        for node in self._program.graph.nodes:
            if node.op == "placeholder":
                continue
            rows.append("    " + self._statement(node, last_users.get(node, [])))
            self.lines[len(rows)] = node
        self.text = "\n".join(rows) + "\n"
        scope = dict(self._globals)
        # The text is written above from a verified graph; nothing of it comes from a file.
        exec(compile(self.text, file, "exec"), scope)
        return scope["run"]

    def _last_uses(self) -> dict[fx.Node, list[fx.Node]]:
        """Which values nobody needs after a node."""
        last: dict[fx.Node, fx.Node] = {}
        for node in self._program.graph.nodes:
            last[node] = node
            for source in node.all_input_nodes:
                last[source] = node
        freed: dict[fx.Node, list[fx.Node]] = {}
        for value, user in last.items():
            freed.setdefault(user, []).append(value)
        return freed

    def _statement(self, node: fx.Node, freed: list[fx.Node]) -> str:
        if node.op == "output":
            values = "".join(f"{self._argument(value)}, " for value in node.args[0])  # type: ignore[union-attr]
            return f"return ({values})"
        if node.op == "get_attr":
            return f"{_name(node)} = {self._bound(self._attribute(str(node.target)), 'c')}"
        args = [self._argument(arg) for arg in node.args]
        args += [f"{key}={self._argument(value)}" for key, value in node.kwargs.items()]
        target = self._bound(self._instead.get(node.name, node.target), "f")
        call = f"{_name(node)} = {target}({', '.join(args)})"
        if self._checked and float_checks.is_checked(node):
            operands = "".join(
                f"{self._argument(v)}, " for v in (*node.args, *node.kwargs.values())
            )
            check, own = self._bound(float_checks.check, "f"), self._bound(node, "n")
            call += f"; {check}({own}, {_name(node)}, ({operands}))"
        gone = [_name(value) for value in freed if value.op != "output"]
        return call + (f"; {' = '.join(gone)} = None" if gone else "")

    def _attribute(self, name: str) -> Any:
        if name in self._program.subgraphs:
            return self._program.subgraphs[name]
        return self._program.constants[name]

    def _argument(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return _name(value)
        if isinstance(value, (list, tuple)) and type(value).__name__ in (
            "list", "tuple", "immutable_list",
        ):  # fmt: skip
            inner = "".join(f"{self._argument(item)}, " for item in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        if isinstance(value, float) and math.isfinite(value):
            return repr(value)
        return self._bound(value, "k")

    def _bound(self, value: Any, prefix: str) -> str:
        """A global name for a value that has no literal."""
        if id(value) not in self._names:
            self._names[id(value)] = f"_{prefix}{len(self._names)}"
            self._globals[self._names[id(value)]] = value
        return self._names[id(value)]


def _name(node: fx.Node) -> str:
    return f"v_{node.name}"


def _spec(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return "?" if value is None else str(value)
