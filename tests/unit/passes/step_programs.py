"""The two Programs of a training step of `loss = sum((x @ w) ** 2)` with momentum."""

from __future__ import annotations

import torch
from tests.unit.program.builder import Builder, aten

from pantile.program.program import Program
from pantile.program.spec import InputKind, NodeTag, OutputKind

PARAMETER, BUFFER, OPTIMIZER = InputKind.PARAMETER, InputKind.BUFFER, InputKind.OPTIMIZER


def gradients() -> Program:
    """The loss and its gradient; a buffer counts the calls."""
    build = Builder("gradients")
    weight = build.input("fc.weight", (3, 2), PARAMETER)
    counter = build.input("calls", (), BUFFER)
    x = build.input("x", (4, 3))
    y = build.call(aten.mm.default, x, weight)
    two = build.constant("c", torch.tensor(2.0))
    doubled = build.call(aten.mul.Tensor, y, two, tag=NodeTag("backward", 1))
    turned = build.call(aten.t.default, x)
    grad = build.call(aten.mm.default, turned, doubled, tag=NodeTag("backward", 1))
    loss = build.call(aten.sum.default, build.call(aten.mul.Tensor, y, y))
    build.write(counter, build.call(aten.add.Tensor, counter, 1))
    build.returns("loss", loss)
    build.returns("fc.weight", grad, OutputKind.GRADIENT)
    return build.finish()


def update() -> Program:
    """`m = 0.9 m + g; w = w - lr m`, and the norm of the gradient as new optimizer state."""
    build = Builder("update")
    weight = build.input("fc.weight", (3, 2), PARAMETER)
    grad = build.input("fc.weight", (3, 2), InputKind.GRADIENT)
    momentum = build.input("fc.weight.momentum", (3, 2), OPTIMIZER)
    rate = build.hyper("lr")
    keep = build.constant("c", torch.tensor(0.9))
    moved = build.call(aten.add.Tensor, build.call(aten.mul.Tensor, momentum, keep), grad)
    step = build.call(aten.mul.Tensor, moved, rate)
    new = build.call(aten.sub.Tensor, weight, step)
    build.returns("norm", build.call(aten.sum.default, grad), OutputKind.OPTIMIZER)
    build.write(weight, new)
    build.write(momentum, moved)
    return build.finish()
