"""From the recorded graph to a Program: functional body, epilogue, tags.

add_(buf, 1)                          %a = add(buf, 1)
y = mul(x, buf)            ->         %y = mul(x, %a)
return y                              copy_(buf, %a)
                                      return %y
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx

from pantile.capture.eager_paths import restore_masked_sums, shape_rules, shield, unshield
from pantile.capture.layout import keep_layout
from pantile.capture.out_of_place import out_of_place
from pantile.capture.recorder import UNKNOWN
from pantile.capture.scopes import SCOPE
from pantile.capture.shared_values import share_values
from pantile.capture.source import place_of_trace
from pantile.errors import CaptureError
from pantile.program.nodes import erase
from pantile.program.program import WRITE, Program
from pantile.program.spec import Input, NodeTag, Output

aten = torch.ops.aten

# Functional graphs need no defensive copies: constants are never written, outputs are copied out.
_IDENTITIES = frozenset(
    {aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten.lift_fresh_copy.default}
)


# `reshape` for `view_copy`: it also takes operands that `view` refuses.
_VIEWS: dict[Any, Any] = {aten.view_copy.default: aten.reshape.default} | {
    getattr(getattr(aten, f"{name}_copy"), overload): getattr(getattr(aten, name), overload)
    for name, overloads in {
        "alias": ["default"],
        "as_strided": ["default"],
        "detach": ["default"],
        "diagonal": ["default"],
        "expand": ["default"],
        "permute": ["default"],
        "select": ["int"],
        "slice": ["Tensor"],
        "squeeze": ["default", "dim", "dims"],
        "t": ["default"],
        "transpose": ["int"],
        "unfold": ["default"],
        "unsqueeze": ["default"],
        "view_as_complex": ["default"],
        "view_as_real": ["default"],
    }.items()
    for overload in overloads
}


@cache
def safe_decompositions() -> dict[Any, Callable[..., Any]]:
    """Ops that write to an argument without saying so in their schema, as ones that do.

    `native_batch_norm` updates the running statistics; functionalisation would not see it. The
    replacement runs the same kernel, so the bits are the same.
    """
    return {aten.native_batch_norm.default: _batch_norm, **shape_rules()}


def _batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if mean is None or var is None:
        return aten._native_batch_norm_legit.no_stats(input, weight, bias, training, momentum, eps)
    if not training:
        return aten._native_batch_norm_legit_no_training.default(
            input, weight, bias, mean, var, momentum, eps
        )
    return aten._native_batch_norm_legit.default(
        input, weight, bias, mean, var, training, momentum, eps
    )


def functional_program(
    recorded: fx.GraphModule,
    fakes: Callable[[], Sequence[torch.Tensor]],
    mode: FakeTensorMode,
    *,
    name: str,
    inputs: Sequence[Input],
    outputs: Sequence[Output],
    checkpoints: Collection[str] = (),
) -> Program:
    """Functionalise what was recorded and wrap it; `checkpoints` are names of recorded nodes."""
    _check_dense(recorded.graph)
    restore_masked_sums(recorded.graph)
    shield(recorded.graph)
    keep_layout(recorded.graph)
    tags = _tags(recorded.graph, checkpoints)

    graph = out_of_place(recorded.graph, mode)
    module: Any = SimpleNamespace(graph=graph)
    if graph is None:
        module = retraced(recorded, fakes(), mode)
    unshield(module.graph)
    return as_program(module, name=name, inputs=inputs, outputs=outputs, tags=tags)


def retraced(
    recorded: fx.GraphModule, fakes: Sequence[torch.Tensor], mode: FakeTensorMode
) -> fx.GraphModule:
    """Trace what was recorded once more, below functionalisation."""

    def replay(*args: Any) -> Any:
        return fx.Interpreter(recorded).run(*args)

    with mode, torch.no_grad(), _use_lazy_graph_module(True):  # nobody runs its code
        return make_fx(
            torch.func.functionalize(replay, remove="mutations"),
            _disable_torch_fn_metadata_mode=True,
        )(*fakes)


def as_program(
    module: fx.GraphModule,
    *,
    name: str,
    inputs: Sequence[Input],
    outputs: Sequence[Output],
    tags: dict[str, NodeTag],
) -> Program:
    """Wrap a functional graph module with epilogue as a Program."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.target in _IDENTITIES:
            node.replace_all_uses_with(node.args[0])
            erase(node)
        elif node.target is operator.getitem and not node.users:
            erase(node)
        elif node.op == "call_function":
            node.meta["tag"] = _tag_of(node, tags)
            node.meta.setdefault("val", None)  # of an assertion, which returns nothing
    for placeholder, entry in zip(graph.find_nodes(op="placeholder"), inputs, strict=True):
        _rename(placeholder, entry.name)
    for node in graph.nodes:
        node.meta = {key: node.meta[key] for key in ("val", "tag") if key in node.meta}
    share_values(graph)
    _writes_last(graph)
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    if not isinstance(output.args[0], (tuple, list)):
        output.args = ((output.args[0],),)
    constants, subgraphs = _attributes(module)
    return Program(name, graph, tuple(inputs), tuple(outputs), constants, subgraphs)


def _check_dense(graph: fx.Graph) -> None:
    for node in graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
                raise CaptureError(
                    f"{node.target} makes a {value.layout} tensor; a static graph holds dense "
                    "tensors only",
                    fix="keep it dense, or make it outside forward",
                    location=place_of_trace(node.meta.get("stack_trace")),
                )


def _rename(node: fx.Node, name: str) -> None:
    node._rename("".join(c if c.isalnum() else "_" for c in name))
    node.target = node.name


def _writes_last(graph: fx.Graph) -> None:
    """Move the epilogue to the end; copies of a value onto itself are dropped."""
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    for node in graph.find_nodes(op="call_function", target=WRITE):
        if node.args[0] is node.args[1]:
            node.replace_all_uses_with(node.args[0])
            erase(node)
            continue
        node.replace_all_uses_with(node.args[1])
        output.prepend(node)


def _attributes(
    module: fx.GraphModule,
) -> tuple[dict[str, torch.Tensor], dict[str, fx.GraphModule]]:
    constants: dict[str, torch.Tensor] = {}
    subgraphs: dict[str, fx.GraphModule] = {}
    for node in module.graph.find_nodes(op="get_attr"):
        if not node.users:
            erase(node)
            continue
        value = getattr(module, str(node.target))
        if isinstance(value, fx.GraphModule):
            _views_again(value)
            subgraphs[str(node.target)] = value
        else:
            # A copy: the host may change its tensor later, the graph's constant must not follow.
            constants[str(node.target)] = value.detach().clone()
    return constants, subgraphs


def _views_again(module: fx.GraphModule) -> None:
    """Turn `t_copy` and the like back to views.

    Functionalisation replaces views by copies in the bodies of torch.cond and the like, whatever
    `remove` says. A copy has other strides, and kernels give other last bits for other strides.
    """
    for inner in module.modules():
        if not isinstance(inner, fx.GraphModule):
            continue
        for node in inner.graph.nodes:
            node.target = _VIEWS.get(node.target, node.target)
        inner.recompile()


def _tags(graph: fx.Graph, checkpoints: Collection[str]) -> dict[str, NodeTag]:
    """Phase, turn (as stage) and source line of every recorded node, by name.

    A backward node shares its sequence number with the forward op whose gradient it computes.
    Placement turns the turns into stages.
    """
    forward: dict[int, NodeTag] = {}
    tags: dict[str, NodeTag] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        number = node.meta.get("seq_nr", -1)
        if node.meta.get("autograd_backward"):
            origin = forward.get(number, NodeTag(stage=UNKNOWN))
            tag = NodeTag("backward", origin.stage, origin.module, origin.source)
        else:
            turn = (node.meta.get("custom") or {}).get("turn", 0)
            scope, source = node.meta.get(SCOPE), place_of_trace(node.meta.get("stack_trace"))
            path, attributes = ("", ()) if scope is None else (scope.path, scope.attributes)
            tag = NodeTag(
                "forward",
                turn,
                path,
                source,
                checkpoint=node.name in checkpoints,
                attributes=attributes,
            )
            # The first op with a number has the gradient; ops without one repeat the number.
            forward.setdefault(number, tag)
        tags[node.name] = tag
    return tags


def _tag_of(node: fx.Node, tags: dict[str, NodeTag]) -> NodeTag:
    for origin in node.meta.get("from_node") or ():
        if origin.name in tags:
            return tags[origin.name]
    return NodeTag()
