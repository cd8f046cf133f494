"""Recorded updates know the shapes that torch's own rules give, for every parameter."""

from collections import defaultdict
from copy import copy

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensor, FakeTensorMode

import poptorch
from pantile.capture.hyper import UpdateRequest
from pantile.capture.optimizer import capture_update
from pantile.program.spec import TensorSpec


class ClippedTogether(torch.optim.Optimizer):
    """Looks at all parameters before it writes to one."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        owned = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        total = torch.stack([p.grad.norm() for p in owned]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad / total.clamp(min=1.0) * group["lr"])


def parameters():
    """Equal and different shapes, one in other strides, one in half, one that has no gradient."""
    plain = [torch.rand(4, 3) for _ in range(3)] + [torch.rand(5), torch.rand(())]
    others = [torch.rand(3, 4).t(), torch.rand(4, 3).half(), torch.rand(4, 3)]
    return [torch.nn.Parameter(tensor) for tensor in (*plain, *others)]


def groups(owned):
    return [{"params": owned[:2]}, {"params": owned[2:], "lr": 0.5}]


def updates(optimizer):
    """The update that makes the optimizer's state, and the one after it."""
    owned = [p for group in optimizer.param_groups for p in group["params"]]
    names = {id(p): f"p{i}" for i, p in enumerate(owned)}
    gradients = {names[id(p)]: TensorSpec.of(p) for p in owned[:-1]}
    first = capture_update(UpdateRequest(optimizer, names, gradients)).program
    twin = copy(optimizer)
    twin.__dict__["state"] = defaultdict(dict)
    for output in first.outputs:
        key, _, name = output.name.partition("/")
        state = torch.zeros(output.spec.shape, dtype=output.spec.dtype)
        twin.state[owned[int(name[1:])]][key] = state
    return first, capture_update(UpdateRequest(twin, names, gradients)).program


def specs(value):
    if isinstance(value, (tuple, list)):
        return [specs(part) for part in value]
    return (value.shape, value.stride(), value.dtype, value.device)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(groups(p), lr=0.1, momentum=0.9, weight_decay=0.1),
        lambda p: torch.optim.AdamW(groups(p), lr=0.1, amsgrad=True),
        lambda p: torch.optim.RMSprop(groups(p), lr=0.1, centered=True, momentum=0.5),
        lambda p: torch.optim.Adagrad(groups(p), lr=0.1, lr_decay=0.1),
        lambda p: torch.optim.Adam(groups(p), lr=0.1, foreach=True),
        lambda p: torch.optim.Adafactor(groups(p), lr=0.1),
        lambda p: torch.optim.Rprop(groups(p), lr=0.1),
        lambda p: poptorch.optim.LAMB(groups(p), lr=0.1),
        lambda p: ClippedTogether(groups(p), lr=0.1),
    ],
    ids=["SGD", "AdamW", "RMSprop", "Adagrad", "foreach", "Adafactor", "Rprop", "LAMB", "clipped"],
)
def test_every_shape_is_what_torchs_rule_says(make):
    for program in updates(make(parameters())):
        mode = FakeTensorMode()
        values: dict[fx.Node, object] = {}
        for node in program.graph.nodes:
            value = node.meta.get("val")
            values[node] = value
            if isinstance(value, FakeTensor):
                with mode:
                    values[node] = torch.empty_strided(
                        value.shape, value.stride(), dtype=value.dtype
                    )
            if not isinstance(node.target, torch._ops.OpOverload) or not isinstance(
                value, (FakeTensor, tuple, list)
            ):
                continue
            args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
            with mode:
                values[node] = node.target(*args, **kwargs)
            assert specs(value) == specs(values[node]), node.format_node()
