"""Run-time slices, loops and branches: on the CPU, captured, trained, refused."""

import pytest
import torch

from pantile import ops
from pantile.errors import Error


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("start", [0, 2, 4])
def test_a_dynamic_slice_is_a_slice(count_up, dtype, start):
    actual = ops.dynamic_slice(count_up, 0, torch.tensor([start], dtype=dtype), 2, 1)

    assert torch.equal(actual, count_up[start : start + 2])


def test_a_dynamic_slice_can_step(count_up):
    actual = ops.dynamic_slice(count_up, 0, torch.tensor(1), 5, 2)

    assert torch.equal(actual, count_up[1:6:2])


def test_a_captured_slice_starts_where_the_tensor_says(device, count_up):
    def forward(x, start):
        return ops.dynamic_slice(x, 0, start, 3, 1)

    graph = device.captured(forward, count_up, torch.tensor(0))

    assert torch.equal(graph(count_up, torch.tensor(2)), count_up[2:5])
    assert torch.equal(graph(count_up, torch.tensor(5)), count_up[[5, 0, 1]])


def test_a_dynamic_slice_has_a_gradient(count_up):
    x = count_up.requires_grad_()

    ops.dynamic_slice(x, 0, torch.tensor(1), 2, 1).sum().backward()

    assert x.grad[:, 0].tolist() == [0, 1, 1, 0, 0, 0]


def test_a_dynamic_update_replaces_a_slice_with_gradients(count_up):
    x = count_up.requires_grad_()
    src = torch.full((2, 2), -1.0, requires_grad=True)

    result = ops.dynamic_update(x, src, 0, torch.tensor(3, dtype=torch.int32), 2)
    result.sum().backward()

    assert torch.equal(result, torch.slice_scatter(x.detach(), src.detach(), 0, 3, 5))
    assert x.grad[:, 0].tolist() == [1, 1, 1, 0, 0, 1]
    assert torch.equal(src.grad, torch.ones(2, 2))


START = torch.tensor(0)
ROWS = torch.ones(6, 2)

BAD_SLICES = [
    (("x", 0, START, 2, 1), "tensor must be a torch.Tensor"),
    ((ROWS, 0, 1, 2, 1), "start must be a torch.Tensor"),
    ((ROWS, 0, torch.tensor(1.0), 2, 1), "one integer"),
    ((ROWS, 0, torch.tensor([1, 2]), 2, 1), "one integer"),
    ((ROWS, "0", START, 2, 1), "dim must be an int"),
    ((ROWS, 2, START, 2, 1), "dim=2 does not exist"),
    ((ROWS, 0, START, 2.0, 1), "size must be an int"),
    ((ROWS, 0, START, 0, 1), "must be different"),
    ((ROWS, 0, START, -1, 1), "end less than the start"),
    ((ROWS, 0, START, 7, 1), "must be a factor"),
    ((ROWS, 0, START, 2, 0), "step=0"),
]


@pytest.mark.parametrize(("arguments", "fragment"), BAD_SLICES)
def test_a_bad_slice_is_refused(arguments, fragment):
    with pytest.raises(Error, match=fragment) as caught:
        ops.dynamic_slice(*arguments)

    assert caught.value.fix


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ((ROWS, torch.ones(2), 0, START, 2), r"same dimensionality\. \(2\) vs \(1\)"),
        ((ROWS, torch.ones(2, 2).int(), 0, START, 2), r"same dtype\. \(torch\.float32 vs"),
        ((ROWS, torch.ones(3, 2), 0, START, 2), "src has shape"),
        ((ROWS, torch.ones(2, 2), 0, START, 0), "must be different"),
        ((ROWS, torch.ones(2, 2), 0, START, -2), "end less than the start"),
    ],
)
def test_a_bad_update_is_refused(arguments, fragment):
    with pytest.raises(Error, match=fragment):
        ops.dynamic_update(*arguments)


def test_strict_mode_wants_the_size_to_divide_the_dimension(strict_environment, count_up):
    with pytest.raises(Error, match=r"slice \(4\) must be a factor of the slicing dimension \(6\)"):
        ops.dynamic_slice(count_up, 0, torch.tensor(0), 4, 1)


def test_on_the_cpu_a_strict_slice_is_a_plain_slice(strict_environment, count_up):
    assert torch.equal(ops.dynamic_slice(count_up, 0, torch.tensor(5), 3, 1), count_up[5:8])
    assert torch.equal(ops.dynamic_slice(count_up, -1, torch.tensor(0), 2, 2), count_up[:, 0:2:2])


def add_one(x):
    return x + 1


def test_a_loop_loops_on_copies():
    x = torch.zeros(2)

    (result,) = ops.for_loop(5, lambda t: t.add_(1), [x])

    assert result.tolist() == [5.0, 5.0]
    assert x.tolist() == [0.0, 0.0]


def test_a_loop_without_rounds_returns_its_inputs():
    (result,) = ops.for_loop(0, add_one, [torch.ones(2)])

    assert result.tolist() == [1.0, 1.0]


def test_a_captured_loop_loops_and_can_use_outer_tensors(device):
    def forward(x, w):
        return ops.for_loop(3, lambda a, b: (a * w, b + a), [x, x])

    x, w = torch.tensor([2.0]), torch.tensor([3.0])

    graph = device.captured(forward, torch.ones(1), torch.ones(1), training=True)

    assert [t.item() for t in graph(x, w)] == [54.0, 2 + 2 + 6 + 18]


def test_a_loop_has_a_gradient():
    w = torch.tensor(3.0, requires_grad=True)

    (result,) = ops.for_loop(3, lambda t: t * w, [torch.tensor(2.0)])
    result.backward()

    assert w.grad.item() == 2 * 3 * 3.0**2


def test_strict_mode_runs_the_body_once_on_the_cpu(strict_environment):
    (result,) = ops.for_loop(5, add_one, [torch.zeros(1)])

    assert result.item() == 1.0


@pytest.mark.parametrize(
    ("inputs", "fragment"),
    [
        (torch.ones(1), "Object is not list"),
        ([torch.ones(1), 3], "at index 1 is not torch.tensor"),
    ],
)
def test_loop_inputs_are_a_list_of_tensors(inputs, fragment):
    with pytest.raises(ValueError, match=fragment):
        ops.for_loop(2, add_one, inputs)


def test_a_loop_counts_with_an_int():
    with pytest.raises(Error, match="count must be an int"):
        ops.for_loop(torch.tensor(2), add_one, [torch.ones(1)])
    with pytest.raises(ValueError, match="count=-1"):
        ops.for_loop(-1, add_one, [torch.ones(1)])


def test_a_loop_body_returns_as_many_tensors_as_it_takes():
    with pytest.raises(Error, match="returned 2 tensors"):
        ops.for_loop(2, lambda x: (x, x), [torch.ones(1)])


def choose(condition, x):
    return ops.cond(condition, lambda a: a + 1, [x], lambda a: a * 10, [x])


@pytest.mark.parametrize(("condition", "expected"), [(True, 3.0), (False, 20.0)])
def test_a_branch_is_chosen_by_value(device, condition, expected):
    graph = device.captured(choose, torch.tensor(True), torch.tensor(1.0))

    on_cpu = choose(torch.tensor(condition), torch.tensor(2.0))
    on_device = graph(torch.tensor(condition), torch.tensor(2.0))

    assert [t.item() for t in on_cpu] == [expected]
    assert [t.item() for t in on_device] == [expected]


def test_only_the_branch_taken_has_a_gradient(device):
    x = torch.tensor(2.0, requires_grad=True)

    with device.recording(device.Notebook(training=True)):
        (result,) = choose(torch.tensor([False]), x)
    result.backward()

    assert x.grad.item() == 10.0


def test_branches_work_on_copies():
    x = torch.zeros(1)

    ops.cond(torch.tensor(True), lambda t: t.add_(1), [x], lambda t: t, [x])

    assert x.item() == 0.0


def test_branches_return_the_same_kind_of_tensors(device):
    def forward(c, x):
        return ops.cond(c, lambda a: a, [x], lambda a: (a, a), [x])

    with pytest.raises(Error, match="then_body returns"):
        device.captured(forward, torch.tensor(True), torch.ones(1))


def test_branch_inputs_are_lists():
    x = torch.ones(1)

    with pytest.raises(ValueError, match="Object is not list"):
        ops.cond(torch.tensor(True), add_one, x, add_one, [x])
    with pytest.raises(ValueError, match="else_inps"):
        ops.cond(torch.tensor(True), add_one, [x], add_one, (x,))


STRICT_REFUSALS = [
    lambda x: ops.for_loop(2, add_one, [x]),
    lambda x: choose(torch.tensor(True), x),
    lambda x: ops.dynamic_slice(x, 0, torch.tensor(0), 1, 1),
    lambda x: ops.CPU(add_one, "ID")(x),
]


@pytest.mark.parametrize("forward", STRICT_REFUSALS)
def test_strict_mode_refuses_control_flow_in_training(device, forward):
    notebook = device.Notebook(strict=True, training=True)

    with (
        device.recording(notebook),
        pytest.raises(Error, match="only supported in inference"),
    ):
        forward(torch.ones(2))


@pytest.mark.parametrize("forward", STRICT_REFUSALS[:3])
def test_strict_mode_allows_control_flow_in_inference(device, forward):
    with device.recording(device.Notebook(strict=True)):
        forward(torch.ones(2))
