"""Ops of their own: printing, host calls, custom ops, CTC decoding, point clouds."""

import itertools
import math

import pytest
import torch
from torch import nn

from pantile import ops
from pantile.errors import Error
from pantile.ops.tensor_text import TextStyle, tensor_text


def test_nothing_is_printed_on_the_cpu(capfd):
    x = torch.ones(2)

    assert ops.ipu_print_tensor(x, "title") is x
    assert capfd.readouterr().err == ""


def test_a_captured_print_happens_at_every_run(device, capfd):
    graph = device.captured(lambda x: ops.ipu_print_tensor(x, "x") * 2, torch.zeros(2))
    graph.graph.eliminate_dead_code()
    graph.recompile()
    printed_by_capture = capfd.readouterr().err

    graph(torch.tensor([1.0, 2.5]))
    graph(torch.tensor([3.0, 4.0]))

    assert printed_by_capture == ""
    assert capfd.readouterr().err == "x: (1.0000, 2.5000)\nx: (3.0000, 4.0000)\n"


def test_a_captured_print_shows_the_gradient(device, capfd):
    def train(x):
        x = x.requires_grad_()
        loss = (ops.ipu_print_tensor(x, "x") * 3).sum()
        return torch.autograd.grad(loss, x)

    graph = device.captured(train, torch.zeros(1), training=True)
    graph(torch.ones(1))

    assert capfd.readouterr().err == "x: (1.0000)\nx_gradient: (3.0000)\n"


def test_the_gradient_is_not_printed_if_not_wanted(device, capfd):
    def train(x):
        x = x.requires_grad_()
        loss = ops.ipu_print_tensor(x, "x", print_gradient=False).sum()
        return torch.autograd.grad(loss, x)

    device.captured(train, torch.zeros(1), training=True)(torch.ones(1))

    assert "gradient" not in capfd.readouterr().err


def test_an_unknown_float_format_is_a_key_error():
    with pytest.raises(KeyError, match="float_format='hex'"):
        ops.ipu_print_tensor(torch.ones(1), float_format="hex")


@pytest.mark.parametrize(
    ("values", "style", "expected"),
    [
        ([[1.0, 2.0], [3.0, 4.0]], {"digits": 1}, "((1.0, 2.0),\n (3.0, 4.0))"),
        ([1, 2], {}, "(1, 2)"),
        ([True], {}, "(True)"),
        (2.5, {"float_format": "scientific", "digits": 2}, "2.50e+00"),
        ([1e9], {"float_format": "fixed", "digits": 0}, "(1000000000)"),
        ([1e9, 0.5], {"digits": 1}, "(1.0e+09, 0.5)"),
        ([0.1], {"float_format": "none"}, f"({torch.tensor(0.1).item()})"),
        (
            [1, 2],
            {"open_bracket": "[", "close_bracket": "]", "separator": " "},
            "[1 2]",
        ),
        (
            list(range(9)),
            {"summarise_threshold": 8, "edge_items": 2},
            "(0, 1, ..., 7, 8)",
        ),
        ([10, 20, 30], {"max_line_width": 8}, "(10, 20,\n 30)"),
        ([], {}, "()"),
    ],
)
def test_tensors_are_written_in_the_style_asked_for(values, style, expected):
    assert tensor_text(torch.tensor(values), TextStyle(**style)) == expected


def test_a_host_call_runs_at_once_on_the_cpu():
    layer = nn.Linear(2, 2)

    op = ops.CPU(layer, "ID")

    assert torch.equal(op(torch.ones(2)), layer(torch.ones(2)))
    assert not any(parameter.requires_grad for parameter in layer.parameters())


def test_a_captured_host_call_runs_python_at_every_run(device):
    seen = []

    def through_numpy(x):
        seen.append(x.tolist())
        return torch.from_numpy(x.numpy() * 2), x.int()

    graph = device.captured(
        lambda x: tuple(t + 1 for t in ops.CPU(through_numpy, "ID")(x + 1)), torch.zeros(2)
    )
    seen.clear()

    doubled, truncated = graph(torch.tensor([1.0, 2.0]))

    assert seen == [[2.0, 3.0]]
    assert doubled.tolist() == [5.0, 7.0]
    assert truncated.tolist() == [3, 4]


def test_a_host_call_can_be_used_twice(device):
    op = ops.CPU(lambda x: x * 2, "ID")

    graph = device.captured(lambda x: op(op(x)), torch.zeros(2))

    assert graph(torch.tensor([1.0, 2.0])).tolist() == [4.0, 8.0]


def test_a_host_call_must_return_tensors(device):
    with pytest.raises(Error, match="'ID' returned str"):
        device.captured(lambda x: ops.CPU(lambda t: "x", "ID")(x), torch.zeros(2))


def test_a_host_call_must_keep_its_shape(device):
    op = ops.CPU(lambda x: x[: 1 + int(x[0])], "ID")
    graph = device.captured(op, torch.zeros(2))

    with pytest.raises(Error, match="when it was captured"):
        graph(torch.ones(2))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x * x


def test_a_registered_custom_op_is_called_with_its_gradient(device):
    ops.register_custom_op("test.domain", "Cube", 1, lambda x: Cube.apply(x))

    def train(x):
        x = x.requires_grad_()
        (y,) = ops.custom_op([x], "Cube", "test.domain", 1, example_outputs=[x])
        return y, torch.autograd.grad(y.sum(), x)[0]

    value, gradient = device.captured(train, torch.ones(1), training=True)(torch.tensor([2.0]))

    assert value.item() == 8.0
    assert gradient.item() == 12.0


def test_attributes_reach_the_custom_op():
    ops.register_custom_op("test.domain", "Scale", 1, lambda x, alpha: [x * alpha, x])
    x = torch.ones(2)

    scaled, same = ops.custom_op([x], "Scale", "test.domain", 1, [x, x], {"alpha": 0.5})

    assert scaled.tolist() == [0.5, 0.5]
    assert torch.equal(same, x)


def test_an_op_of_torch_library_is_found(device):
    (result,) = ops.custom_op([torch.tensor(4.0)], "sqrt", "aten", 1, [torch.tensor(0.0)])

    assert result.item() == 2.0


def test_an_unregistered_custom_op_gives_zeros_on_the_cpu_only(device):
    x = torch.ones(2)

    (zeros,) = ops.custom_op([x], "Unknown", "test.domain", 1, [x])

    assert zeros.tolist() == [0.0, 0.0]
    with pytest.raises(Error, match="name='Unknown'"), device.recording(device.Notebook()):
        ops.custom_op([x], "Unknown", "test.domain", 1, [x])


def test_a_custom_op_must_look_like_its_examples():
    ops.register_custom_op("test.domain", "Wrong", 1, lambda x: x.int())

    with pytest.raises(Error, match="example_outputs"):
        ops.custom_op([torch.ones(2)], "Wrong", "test.domain", 1, [torch.ones(2)])


@pytest.mark.parametrize(
    ("attributes", "kind", "fragment"),
    [
        ({1: 2}, ValueError, "not a str"),
        ({"a": torch.ones(1)}, ValueError, "type Tensor"),
        ({"a": [1, 2.0]}, ValueError, "mixes float, int"),
        ({"a": "é"}, ValueError, "non-ASCII"),
        ({"a": ["é"]}, ValueError, "non-ASCII"),
        ({"a": 2**70}, ValueError, "64 bits"),
        ({"a": 1e39}, Error, "too high for a Popart float"),
        ({"a": [-1e39]}, Error, "too low for a Popart float"),
    ],
)
def test_custom_op_attributes_are_checked(attributes, kind, fragment):
    x = torch.ones(1)

    with pytest.raises(kind, match=fragment):
        ops.custom_op([x], "Any", "test.domain", 1, [x], attributes)


def collapse(frames, blank):
    """The label sequence that one choice of labels per frame stands for."""
    merged = [label for label, _ in itertools.groupby(frames)]
    return tuple(label for label in merged if label != blank)


def all_sequences(log_probs, blank):
    """Every label sequence with its log-probability, best first, by summing over all alignments."""
    frames, classes = log_probs.shape
    totals = {}
    for choice in itertools.product(range(classes), repeat=frames):
        score = math.exp(sum(log_probs[t, label].item() for t, label in enumerate(choice)))
        sequence = collapse(choice, blank)
        totals[sequence] = totals.get(sequence, 0.0) + score
    ranked = sorted(totals.items(), key=lambda item: -item[1])
    return [(sequence, math.log(score)) for sequence, score in ranked]


@pytest.mark.parametrize("blank", [0, 2])
def test_the_beam_search_finds_the_most_likely_sequences(blank):
    torch.manual_seed(blank)
    probs = torch.log_softmax(2 * torch.randn(5, 2, 3, dtype=torch.float64), dim=2)
    lengths = torch.tensor([5, 3])

    scores, sizes, labels = ops.ctc_beam_search_decoder(
        probs, lengths, blank=blank, beam_width=200, top_paths=4
    )

    assert (scores.shape, sizes.shape, labels.shape) == ((2, 4), (2, 4), (2, 4, 5))
    for item in range(2):
        expected = all_sequences(probs[: lengths[item], item], blank)[:4]
        for rank, (sequence, score) in enumerate(expected):
            size = sizes[item, rank].item()
            assert tuple(labels[item, rank, :size].tolist()) == sequence
            assert labels[item, rank, size:].eq(0).all()
            assert scores[item, rank].item() == pytest.approx(score, rel=1e-9)


def test_paths_that_do_not_exist_have_no_probability():
    probs = torch.log(torch.tensor([[[0.5, 0.5]]]))

    scores, sizes, _ = ops.ctc_beam_search_decoder(probs, torch.tensor([1]), top_paths=3)

    assert scores[0, 2].item() == -math.inf
    assert sizes[0, 2].item() == 0


def test_the_beam_search_can_be_captured(device):
    probs = torch.log_softmax(torch.randn(4, 2, 3), dim=2)
    lengths = torch.tensor([4, 4])

    graph = device.captured(
        lambda p, n: ops.ctc_beam_search_decoder(p, n), torch.zeros(4, 2, 3), lengths
    )

    expected = ops.ctc_beam_search_decoder(probs, lengths)
    assert all(torch.equal(a, e) for a, e in zip(graph(probs, lengths), expected, strict=True))


def test_on_the_cpu_the_strict_beam_search_gives_zeros(strict_environment):
    results = ops.ctc_beam_search_decoder(torch.ones(4, 2, 3), torch.tensor([4, 4]))

    assert [tuple(t.shape) for t in results] == [(2, 1), (2, 1), (2, 1, 4)]
    assert all(t.eq(0).all() for t in results)


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (([1.0], torch.ones(1)), "probs must be a torch.Tensor"),
        ((torch.ones(1, 1, 1), 3), "lengths must be a torch.Tensor"),
        ((torch.ones(4, 3), torch.ones(1)), "rank 3"),
        ((torch.ones(4, 2, 3), torch.ones(1)), "lengths has shape"),
        ((torch.ones(4, 1, 3), torch.ones(1), 3), "blank=3"),
        ((torch.ones(4, 1, 3), torch.ones(1), 0, 2, 3), "top_paths=3"),
    ],
)
def test_bad_arguments_of_the_beam_search_are_refused(arguments, fragment):
    with pytest.raises(Error, match=fragment):
        ops.ctc_beam_search_decoder(*arguments)


LINE = torch.tensor([[0.0], [1.0], [10.0], [4.0], [0.0], [3.0]])


def test_farthest_points_are_taken_cloud_by_cloud(device):
    expected = [0, 2, 4]  # of 0, 1, 10, 4: 0, then 10; of 0, 3: 0

    graph = device.captured(lambda x: ops.fps(x, [0, 4, 6], 0.5), LINE)

    assert ops.fps(LINE, [0, 4, 6], 0.5).tolist() == expected
    assert graph(LINE).tolist() == expected
    assert ops.fps(LINE, [0, 4, 6], 1.0).tolist() == [0, 2, 3, 1, 4, 5]


def test_a_random_start_still_takes_distinct_points():
    taken = ops.fps(LINE, [0, 4], 1.0, random_start=True)

    assert sorted(taken.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (([1.0], [0, 1]), "src must be a torch.Tensor"),
        ((LINE, torch.tensor([0, 6])), "ptr="),
        ((LINE, [0]), "at least two"),
        ((LINE, [0, 7]), "number of points, 6"),
        ((LINE, [0, 6], 0.0), "ratio=0.0"),
    ],
)
def test_bad_arguments_of_farthest_point_sampling_are_refused(arguments, fragment):
    with pytest.raises(Error, match=fragment):
        ops.fps(*arguments)


def test_the_nearest_point_is_found(device):
    x = torch.tensor([[0.0, 0.0], [5.0, 5.0], [1.0, 0.0]])
    y = torch.tensor([[4.0, 4.0], [0.0, 1.0], [9.0, 9.0]])
    expected = torch.cdist(x, y).argmin(dim=1)

    graph = device.captured(lambda a, b: ops.nearest(a, b), x, y)

    assert torch.equal(ops.nearest(x, y), expected)
    assert torch.equal(graph(x, y), expected)


@pytest.mark.parametrize("convert", [list, torch.tensor])
def test_the_nearest_point_is_of_the_same_batch(convert):
    x, y = torch.tensor([0.0, 0.0]), torch.tensor([0.1, 5.0, 7.0])

    result = ops.nearest(x, y, convert([0, 1]), convert([0, 1, 1]))

    assert result.tolist() == [0, 1]


def test_points_without_a_batch_are_of_batch_zero():
    x, y = torch.tensor([0.0, 6.0]), torch.tensor([0.1, 5.0, 7.0])

    assert ops.nearest(x, y, batch_y=[0, 1, 1]).tolist() == [0, 0]
    assert ops.nearest(x, y, batch_x=[0, 0]).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (([1.0], LINE), "x must be a torch.Tensor"),
        ((LINE, torch.ones(2, 2)), "coordinates"),
        ((LINE, LINE, [0, 0, 0, 1, 1, 1]), "no point of the batches"),
        ((LINE, LINE, [0, 1, 1, 0, 1, 1], [0, 0, 0, 1, 1, 1]), "not sorted"),
        ((LINE, LINE, "abc", [0] * 6), "batch_x must be"),
        ((LINE, LINE, [0] * 5, [0] * 6), "batch_x has shape"),
    ],
)
def test_bad_arguments_of_nearest_are_refused(arguments, fragment):
    with pytest.raises(Error, match=fragment):
        ops.nearest(*arguments)
