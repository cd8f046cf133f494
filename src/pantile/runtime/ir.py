"""A compiled step as JSON, in the form that `_debugGetPopartIR()` had.

    {"maingraph": [{"type": "MatMul", "name": "fc/MatMul",
                    "inputs":  [{"index": 0, "name": "input", "shape": [2, 3], "type": "FLOAT"}],
                    "outputs": [{"index": 0, "name": "fc/MatMul:0", …}],
                    "attributes": {"phase": "forward", "source": "model.py:12", …}}, …]}

Ops are those of the program of one micro-batch, in their order. The update follows, one op per
parameter, as the old backend showed it: our own update is one program for all parameters.
A pipeline has a `Stash` for each tensor that a stage keeps until its backward.
A name that ends in `:InPlace` says that the op is the last reader of its first operand, which has
the shape of the result: a compiler may reuse its memory.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from pantile.optim.supported import rule_name
from pantile.passes.split_stages import Split
from pantile.program.naming import TensorNames
from pantile.program.op_types import op_type
from pantile.program.program import WRITE, Program, tag_of
from pantile.program.spec import MULTI_CONV, InputKind, OutputKind, TensorSpec
from pantile.runtime.names import UPDATED
from pantile.runtime.optimizer import Update

_TYPES = {
    torch.float32: "FLOAT",
    torch.float16: "FLOAT16",
    torch.float64: "DOUBLE",
}
_UPDATES: Mapping[str, tuple[str, ...]] = {
    "SGD": ("SGD0VarUpdate",),
    "SGD with state": ("SGD2Accumulate", "SGD2VarUpdate"),
    "Adam": ("AdamUpdater", "AdamVarUpdate"),
    "AdamW": ("AdamUpdater", "AdamVarUpdate"),
    "LAMB": ("AdamUpdater", "LambSquare", "AdamVarUpdate"),
    "RMSprop": ("RMSPropUpdater", "AdamVarUpdate"),
}


def ir_json(
    program: Program, update: Update | None, partials: torch.dtype, split: Split | None = None
) -> str:
    """The step as JSON text; `partials` is what `Precision.setPartialsType` asked for."""
    ops = [*_program_ops(program), *_stash_ops(split), *_update_ops(program, update)]
    kind = "half" if partials is torch.float16 else "float"
    for op in ops:
        if op["type"] == "MatMul":
            op["attributes"]["partialsType"] = f"MatMulPartialsType::{kind.upper()}"
        elif op["type"] == "Conv":
            op["attributes"]["partialsType[0]"] = kind
    return json.dumps({"maingraph": ops}, separators=(",", ":"))


def _program_ops(program: Program) -> Iterator[dict[str, Any]]:
    names = TensorNames(program)
    entries = dict(zip(program.placeholders, program.inputs, strict=True))
    kept = {n for n, e in entries.items() if e.kind is not InputKind.ARGUMENT}
    grouped: dict[str, dict[str, Any]] = {}
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if node.target is WRITE:
            yield _write(node, names)
            continue
        group = dict(tag_of(node).attributes).get(MULTI_CONV)
        if group is not None and op_type(node) == "Conv":
            known = grouped.get(group)
            if known is None:
                known = grouped[group] = _multi_conv(node, names)
                yield known
            _join(known, node, names)
            continue
        suffix = ":InPlace" if _overwrites(node, kept) else ""
        yield {
            "type": op_type(node),
            "name": names.op(node) + suffix,
            "inputs": [_tensor(i, n, names) for i, n in enumerate(node.all_input_nodes)],
            "outputs": [_tensor(i, n, names) for i, n in _results(node)],
            "attributes": _attributes(node),
        }
        if tag_of(node).checkpoint:
            yield _checkpoint(node, names)


def _checkpoint(node: fx.Node, names: TensorNames) -> dict[str, Any]:
    """Where recomputation begins: an identity, as the old backend showed it."""
    tensor = _tensor(0, node, names)
    name = f"{names.op(node)}/Checkpoint"
    return _kept("Identity", name, tensor, f"{tensor['name']}/Checkpoint", tag_of(node).stage)


def _stash_ops(split: Split | None) -> Iterator[dict[str, Any]]:
    if split is None:
        return
    names = TensorNames(split.program)
    for stage in range(split.stages):
        for node in split.kept(stage):
            tensor = _tensor(0, node, names)
            name = tensor["name"]
            yield _kept("Stash", f"{name}/Stash", tensor, f"Stash___{name}", stage)


def _kept(kind: str, name: str, tensor: dict[str, Any], other: str, stage: int) -> dict[str, Any]:
    """An op that has a tensor again under another name."""
    return {
        "type": kind,
        "name": name,
        "inputs": [tensor],
        "outputs": [{**tensor, "name": other}],
        "attributes": {"phase": "forward", "stage": str(stage)},
    }


def _multi_conv(node: fx.Node, names: TensorNames) -> dict[str, Any]:
    """Convolutions of one `MultiConv` scope are one op, at the place of the first."""
    name = names.op(node).removesuffix("Conv") + "MultiConv"
    lists: dict[str, Any] = {"inputs": [], "outputs": [], "attributes": _attributes(node)}
    return {"type": "MultiConv", "name": name, **lists}


def _join(op: dict[str, Any], node: fx.Node, names: TensorNames) -> None:
    inputs, outputs = op["inputs"], op["outputs"]
    inputs += [_tensor(len(inputs) + i, n, names) for i, n in enumerate(node.all_input_nodes)]
    outputs += [_tensor(len(outputs) + i, n, names) for i, n in _results(node)]


def _results(node: fx.Node) -> list[tuple[int, fx.Node]]:
    if isinstance(node.meta.get("val"), torch.Tensor):
        return [(0, node)]
    parts = (user for user in node.users if user.target is operator.getitem)
    return [(int(user.args[1]), user) for user in parts]  # type: ignore[arg-type]


def _write(node: fx.Node, names: TensorNames) -> dict[str, Any]:
    target, value = node.all_input_nodes
    return {
        "type": "CopyVarUpdate",
        "name": f"{names.of(target)}/CopyVarUpdate",
        "inputs": [_tensor(0, target, names), _tensor(1, value, names)],
        "outputs": [{**_tensor(0, target, names), "name": f"{UPDATED}{names.of(target)}"}],
        "attributes": _attributes(node),
    }


def _tensor(index: int, node: fx.Node, names: TensorNames) -> dict[str, Any]:
    value = node.meta.get("val")
    info = (TensorSpec.of(value).shape, value.dtype) if isinstance(value, torch.Tensor) else None
    return {"index": index, "name": names.of(node), **_info(info)}


def _info(info: tuple[tuple[int, ...], torch.dtype] | None) -> dict[str, Any]:
    if info is None:
        return {}
    shape, dtype = info
    kind = _TYPES.get(dtype, str(dtype).removeprefix("torch.").upper())
    return {"shape": list(shape), "type": kind}


def _attributes(node: fx.Node) -> dict[str, str]:
    """What else is known of an op: all as text, as the old form had it."""
    tag = tag_of(node)
    found = {"phase": tag.phase, "stage": str(tag.stage), "source": tag.source}
    if isinstance(node.target, OpOverload):
        found["target"] = str(node.target)
        pairs = zip((a.name for a in node.target._schema.arguments), node.args, strict=False)
        plain = {**dict(pairs), **node.kwargs}
        found |= {k: str(v) for k, v in plain.items() if not _holds_tensor(v)}
    return {**found, **dict(tag.attributes)}


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_tensor, value))
    return isinstance(value, fx.Node)


def _overwrites(node: fx.Node, kept: set[fx.Node]) -> bool:
    """May an elementwise op put its result where its first operand was?"""
    if not isinstance(node.target, OpOverload) or torch.Tag.pointwise not in node.target.tags:
        return False
    first = next(iter(node.all_input_nodes), None)
    if first is None or first in kept or first.op == "get_attr" or len(first.users) > 1:
        return False
    before, after = first.meta.get("val"), node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    return TensorSpec.of(before) == TensorSpec.of(after)


def _update_ops(program: Program, update: Update | None) -> Iterator[dict[str, Any]]:
    if update is None:
        return
    rule = rule_name(update.bound)
    if rule == "SGD" and any(group.get("momentum") for group in update.bound.param_groups):
        rule = "SGD with state"
    specs = {o.name: o.spec for o in program.outputs_of(OutputKind.GRADIENT)}
    for group in update.bound.param_groups:
        for parameter in group["params"]:
            name = update.names.get(id(parameter))
            if name in specs:
                info = _info((tuple(parameter.shape), parameter.dtype))
                for kind in _UPDATES.get(rule, (f"{rule}VarUpdate",)):
                    yield _update_op(kind, name, info)


def _update_op(kind: str, name: str, info: dict[str, Any]) -> dict[str, Any]:
    inputs = [name, f"Gradient___{name}"]
    return {
        "type": kind,
        "name": f"{name}/{kind}",
        "inputs": [{"index": i, "name": n, **info} for i, n in enumerate(inputs)],
        "outputs": [{"index": 0, "name": f"{UPDATED}{name}", **info}],
        "attributes": {"phase": "update"},
    }
