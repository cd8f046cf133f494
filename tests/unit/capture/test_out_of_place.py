"""In-place ops are rewritten as functionalisation rewrites them, or left to it."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from pantile.capture.fake import fake_like, fake_mode
from pantile.capture.layout import keep_layout
from pantile.capture.out_of_place import out_of_place
from pantile.capture.rewrite import as_program, retraced, safe_decompositions
from pantile.program.print_text import print_program
from pantile.program.spec import Input, InputKind, Output, OutputKind, TensorSpec


def both_ways(function, *tensors):
    """The programs of a function, by the short way (None if there is none) and by torch's."""
    mode = fake_mode()

    def fakes():
        return [fake_like(mode, tensor, "an input") for tensor in tensors]

    with mode:
        recorded = make_fx(function, decomposition_table=safe_decompositions())(*fakes())
    keep_layout(recorded.graph)
    short = out_of_place(recorded.graph, mode)
    long = retraced(recorded, fakes(), mode)
    made = None if short is None else text(SimpleNamespace(graph=short), tensors)
    return made, text(long, tensors)


def text(module, tensors):
    inputs = [
        Input(f"x{i}", InputKind.BUFFER, TensorSpec.of(tensor)) for i, tensor in enumerate(tensors)
    ]
    returned = module.graph.output_node().args[0]
    outputs = [
        Output(f"out{i}", OutputKind.USER, TensorSpec.of(node.meta["val"]))
        for i, node in enumerate(returned)
    ]
    return print_program(as_program(module, name="t", inputs=inputs, outputs=outputs, tags={}))


def counted(x, steps):
    steps.add_(1)
    return (x * steps,)


def dropped(x, y):
    return (F.dropout(x + y, 0.3, training=True),)


def normed(x, y):
    mean, var = torch.zeros_like(y[0, :, 0]), torch.ones_like(y[0, :, 0])
    return (F.batch_norm(x, mean, var, training=True), mean, var)


def chain(x, y):
    a = x + y
    before = a.sum()
    a.relu_().mul_(2.0)
    seen = a.detach()
    a.sub_(y)
    return a, seen.sum(), before


def returned(x, y):
    x.mul_(y)
    return x, y + x


def written_twice(x, y):
    x.add_(y)
    y.add_(x)
    x.mul_(y)
    return (x - y,)


def plain(x, y):
    a, b = (x @ y.transpose(-1, -2)).split(1, 0)
    return a.softmax(-1), F.layer_norm(b, b.shape[-1:]), y[0]


X, Y = torch.rand(2, 3, 4), torch.rand(2, 3, 4)


@pytest.mark.parametrize(
    ("function", "tensors"),
    [
        (counted, (X, torch.tensor(3))),
        (dropped, (X, Y)),
        (normed, (X, Y)),
        (chain, (X, Y)),
        (chain, (X.transpose(0, 2), Y.transpose(0, 2))),
        (returned, (X, Y)),
        (written_twice, (X, Y)),
        (plain, (X, Y)),
    ],
)
def test_the_short_way_is_the_long_one(function, tensors):
    short, long = both_ways(function, *tensors)

    assert short == long


def test_running_statistics_are_written_back():
    def norm(x, mean, var):
        return (F.batch_norm(x, mean, var, training=True, momentum=0.2),)

    short, long = both_ways(norm, X, torch.zeros(3), torch.ones(3))

    assert short == long
    assert short.count("write ") == 2


def through_a_view(x, y):
    x[0].add_(y[0])
    return (x * 2,)


def behind_a_view(x, y):
    row = x[0]
    x.add_(y)
    return (row * 2,)


def of_a_view(x, y):
    x.view(-1).mul_(2.0)
    return (x + y,)


def with_another_layout(x, y):
    a = torch.empty_like(x)
    a.copy_(y)
    return (a.mul_(x.transpose(0, 2).contiguous().transpose(0, 2)),)


def narrowed(x, y):
    half = x.half()
    return (half.mul_(y),)


def constant(x, y):
    return (x + torch.tensor([1.0, 2.0, 3.0, 4.0]), y)


@pytest.mark.parametrize(
    "function",
    [through_a_view, behind_a_view, of_a_view, with_another_layout, narrowed, constant],
)
def test_what_is_involved_is_left_to_functionalisation(function):
    short, _ = both_ways(function, X, Y)

    assert short is None
