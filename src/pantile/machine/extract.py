"""From a Program to plain records: shapes, dtypes, views, stage, phase, module, source line."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from pantile.machine.records import Kind, OpRecord, Phase, ProgramRecord, TensorRecord
from pantile.program.program import WRITE, Program, tag_of
from pantile.program.spec import InputKind

_KINDS: dict[InputKind, Kind] = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.OPTIMIZER: "optimizer",
    InputKind.GRADIENT: "gradient",
    InputKind.HYPER: "hyper",
    InputKind.ARGUMENT: "argument",
    InputKind.SEEDS: "hyper",
    InputKind.CONSTANT: "constant",
}
_VIEWS = frozenset(
    {
        "view",
        "reshape",
        "_unsafe_view",
        "t",
        "transpose",
        "permute",
        "expand",
        "unsqueeze",
        "squeeze",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "unbind",
        "chunk",
        "detach",
        "alias",
        "as_strided",
        "diagonal",
        "unfold",
        "narrow",
        "flatten",
        "view_as",
        "_reshape_alias",
        "movedim",
        "swapaxes",
    }
)
#: The positions of arguments that shape the work of an op, by name.
_ATTRIBUTES: dict[str, dict[str, int]] = {
    "convolution": {"stride": 3, "padding": 4, "dilation": 5, "transposed": 6, "groups": 8},
    "convolution_backward": {
        "stride": 4,
        "padding": 5,
        "dilation": 6,
        "transposed": 7,
        "groups": 9,
        "mask": 10,
    },
    "_softmax": {"dim": 1},
    "_log_softmax": {"dim": 1},
    "gelu": {"approximate": -1},
    "max_pool2d_with_indices": {"kernel": 1, "stride": 2},
    "avg_pool2d": {"kernel": 1, "stride": 2},
}


def records_of(program: Program, *, phase: Phase | None = None) -> ProgramRecord:
    """The records of a program; `phase` overrides the tags (an update has none)."""
    return _Extraction(program, phase).run()


class _Extraction:
    def __init__(self, program: Program, phase: Phase | None) -> None:
        self._program = program
        self._phase = phase
        self._tensors: list[TensorRecord] = []
        self._ops: list[OpRecord] = []
        self._ids: dict[fx.Node, tuple[int, ...]] = {}
        self._made_by: dict[int, OpRecord] = {}

    def run(self) -> ProgramRecord:
        program = self._program
        for node, entry in zip(program.placeholders, program.inputs, strict=True):
            self._ids[node] = self._add(node, entry.name, _KINDS[entry.kind])
        for node in program.graph.nodes:
            if node.op == "get_attr":
                self._ids[node] = self._add(node, str(node.target), "constant")
            elif node.op == "call_function":
                self._visit(node)
        outputs = [i for value in program.returned for i in self._of(value)]
        written = [i for _, value in program.writes for i in self._of(value)]
        return ProgramRecord(
            program.name, tuple(self._tensors), tuple(self._ops), tuple(outputs), tuple(written)
        )

    def _visit(self, node: fx.Node) -> None:
        if node.target is WRITE:
            self._ids[node] = self._of(node.args[0])
            return
        if node.target is operator.getitem:
            parent, index = self._of(node.args[0]), node.args[1]
            whole = isinstance(index, int) and index < len(parent)
            self._ids[node] = (parent[int(index)],) if whole else ()  # type: ignore[arg-type]
            return
        name = operator_name(node.target)
        inputs = tuple(i for value in _operands(node) for i in self._of(value))
        view = name in _VIEWS and inputs and not _copies(node)
        of = self._tensors[inputs[0]].of if view else None
        outputs = self._add(node, node.name, "value", of=of)
        self._ids[node] = outputs
        if not view and outputs:
            self._record(node, name, inputs, outputs)

    def _record(
        self, node: fx.Node, name: str, inputs: tuple[int, ...], outputs: tuple[int, ...]
    ) -> None:
        tag = tag_of(node)
        phase: Phase = self._phase or ("backward" if tag.phase == "backward" else "forward")
        stage, module, source = tag.stage, tag.module.replace("/", "."), tag.source
        if stage < 0 or (phase == "backward" and name == "add"):
            # Autograd sums gradients where they meet; those nodes carry a tag of somewhere else.
            origin = self._latest(inputs) or (self._ops[-1] if stage < 0 and self._ops else None)
            if origin is not None:
                stage, module, source = origin.stage, origin.module, origin.source
        op = OpRecord(
            len(self._ops),
            name,
            inputs,
            outputs,
            phase,
            max(0, stage),
            module,
            source,
            _attributes(node, name),
        )
        self._ops.append(op)
        for output in outputs:
            self._made_by[output] = op

    def _latest(self, inputs: tuple[int, ...]) -> OpRecord | None:
        makers = [self._made_by.get(self._tensors[i].of) for i in inputs]
        found = [op for op in makers if op is not None and op.phase == "backward"]
        return max(found, key=lambda op: op.id, default=None)

    def _of(self, value: Any) -> tuple[int, ...]:
        if isinstance(value, fx.Node):
            return self._ids.get(value, ())
        if isinstance(value, (list, tuple)):
            return tuple(i for part in value for i in self._of(part))
        return ()

    def _add(
        self, node: fx.Node, name: str, kind: Kind, *, of: int | None = None
    ) -> tuple[int, ...]:
        values = node.meta.get("val")
        many = isinstance(values, (list, tuple))
        found = []
        parts: list[Any] = list(values or ()) if many else [values]
        for index, value in enumerate(parts):
            number = len(self._tensors)
            shape, dtype, strides = _shape_of(value)
            label = f"{name}.{index}" if many else name
            root = number if of is None else of
            self._tensors.append(TensorRecord(number, label, shape, dtype, kind, root, strides))
            found.append(number)
        return tuple(found)


def operator_name(target: Any) -> str:
    """`mm` for `aten.mm.default`; a namespace other than aten is kept."""
    if isinstance(target, torch._ops.OpOverload):
        namespace, _, name = target._schema.name.partition("::")
        return name if namespace == "aten" else f"{namespace}.{name}"
    return getattr(target, "__name__", str(target))


def _operands(node: fx.Node) -> Iterator[Any]:
    yield from node.args
    yield from node.kwargs.values()


def _shape_of(value: Any) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return tuple(int(s) for s in value.shape), dtype, tuple(int(s) for s in value.stride())
    return (), "float32", ()


def _copies(node: fx.Node) -> bool:
    """Whether a reshape has to move elements: its operand is not laid out that way."""
    if operator_name(node.target) not in ("reshape", "_unsafe_view"):
        return False
    source, value = node.args[0], node.meta.get("val")
    if not isinstance(source, fx.Node) or not isinstance(value, torch.Tensor):
        return False
    origin = source.meta.get("val")
    return isinstance(origin, torch.Tensor) and not origin.is_contiguous()


def _attributes(node: fx.Node, name: str) -> dict[str, Any]:
    wanted = _ATTRIBUTES.get(name, {})
    found: dict[str, Any] = {}
    for key, place in wanted.items():
        if 0 <= place < len(node.args):
            found[key] = _plain(node.args[place])
        elif key in node.kwargs:
            found[key] = _plain(node.kwargs[key])
    return found


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value
