"""Ops that mark tensors or scopes: identity on values, notes for the recorder."""

from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F

from pantile import ops
from pantile.enums import MatMulSerializationMode, MultiConvPlanType, OverlapMode
from pantile.errors import Error

MODE = OverlapMode.OverlapDeviceIterationLoop
Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("reduction", "expected"), [("sum", torch.sum), ("mean", torch.mean), ("none", torch.clone)]
)
def test_identity_loss_reduces_with_a_gradient(reduction, expected):
    x = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    twin = x.detach().clone().requires_grad_()

    loss = ops.identity_loss(x, reduction)

    assert torch.equal(loss, expected(twin))
    loss.sum().backward()
    expected(twin).sum().backward()
    assert torch.equal(x.grad, twin.grad)


def test_identity_loss_marks_its_result(device):
    notebook = device.Notebook(training=True)

    with device.recording(notebook):
        loss = ops.identity_loss(torch.ones(3), "none")

    assert notebook.losses[0] is loss


def test_identity_loss_refuses_another_reduction():
    with pytest.raises(AssertionError, match="reduction='max'"):
        ops.identity_loss(torch.ones(3), reduction="max")


@pytest.mark.parametrize(
    ("call", "kind", "details"),
    [
        (ops.nop, "nop", {}),
        (ops.recomputationCheckpoint, "recompute_checkpoint", {}),
        (lambda x: ops.set_available_memory(x, 0.3), "available_memory", {"proportion": 0.3}),
        (lambda x: ops.set_overlap_for_input(x, MODE), "overlap_input", {"mode": MODE}),
        (lambda x: ops.set_overlap_for_output(x, MODE), "overlap_output", {"mode": MODE}),
    ],
)
def test_hints_are_identities_that_the_recorder_hears(device, call, kind, details):
    x = torch.ones(3)
    notebook = device.Notebook()

    on_cpu = call(x)
    with device.recording(notebook):
        on_device = call(x)

    assert on_cpu is x
    assert torch.equal(on_device, x)
    assert notebook.marks == [(kind, details)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((1,), lambda a: a[0]),
        ((1, 2), tuple),
        (([1, 2],), list),
        (((1, 2),), tuple),
        ((Pair(1, 2),), lambda a: Pair(*a)),
    ],
)
def test_recomputation_checkpoints_keep_the_structure(arguments, expected):
    tensors = [torch.tensor(1.0), torch.tensor(2.0)]

    def as_tensors(value):
        if isinstance(value, int):
            return tensors[value - 1]
        items = [as_tensors(item) for item in value]
        return Pair(*items) if isinstance(value, Pair) else type(value)(items)

    result = ops.recomputationCheckpoint(*(as_tensors(value) for value in arguments))

    wanted = expected(tensors)
    assert type(result) is type(wanted)
    assert result is wanted if isinstance(wanted, torch.Tensor) else result == wanted


def test_recomputation_checkpoints_are_for_tensors():
    with pytest.raises(ValueError, match="argument 1 must be a"):
        ops.recomputationCheckpoint(torch.ones(1), "x")


@pytest.mark.parametrize(
    "call",
    [
        ops.nop,
        lambda x: ops.set_available_memory(x, 0.5),
        lambda x: ops.identity_loss(x, "sum"),
        ops.ipu_print_tensor,
    ],
)
def test_a_tensor_op_refuses_something_else(call):
    with pytest.raises(Error, match=r"must be a torch\.Tensor, not list"):
        call([1.0])


@pytest.mark.parametrize("proportion", ["half", 1.5, -0.1, True])
def test_a_memory_proportion_is_between_0_and_1(proportion):
    with pytest.raises(Error, match="proportion"):
        ops.set_available_memory(torch.ones(1), proportion)


def test_overlap_keeps_nested_structures():
    structure = {"a": torch.ones(1), "b": [torch.zeros(1), 3]}

    result = ops.set_overlap_for_output(structure, MODE)

    assert result["a"] is structure["a"]
    assert result["b"][0] is structure["b"][0]
    assert result["b"][1] == 3


def test_overlap_needs_an_overlap_mode():
    with pytest.raises(Error, match="OverlapMode"):
        ops.set_overlap_for_input(torch.ones(1), "all")


def test_a_serialized_matmul_is_a_matmul(device):
    lhs, rhs = torch.randn(4, 6), torch.randn(6, 2)
    notebook = device.Notebook()

    with device.recording(notebook):
        result = ops.serializedMatMul(lhs, rhs, MatMulSerializationMode.ReducingDim, factor=3)

    assert torch.equal(result, lhs @ rhs)
    ((kind, details),) = notebook.marks
    assert (kind, details["factor"]) == ("serialized_matmul", 3)


@pytest.mark.parametrize(
    "arguments",
    [
        (1, torch.ones(2, 2), MatMulSerializationMode.Disabled),
        (torch.ones(2, 2), torch.ones(2, 2), "none"),
        (torch.ones(2, 2), torch.ones(2, 2), MatMulSerializationMode.Disabled, "2"),
        (torch.ones(2, 2), torch.ones(2, 2), MatMulSerializationMode.Disabled, 2, 1),
    ],
)
def test_a_serialized_matmul_checks_its_types(arguments):
    with pytest.raises(AssertionError, match="serializedMatMul: argument"):
        ops.serializedMatMul(*arguments)


def test_scopes_reach_the_recorder_in_order(device):
    notebook = device.Notebook()

    with device.recording(notebook), ops.NameScope("encoder"), ops.Attribute(__outline={"a": "b"}):
        pass

    assert notebook.events == [
        ("push", "name", "encoder"),
        ("push", "attributes", {"__outline": {"a": "b"}}),
        ("pop", "attributes"),
        ("pop", "name"),
    ]


def test_scopes_check_their_arguments():
    with pytest.raises(AssertionError, match="name must be a str"):
        ops.NameScope(3)
    with pytest.raises(AssertionError, match="must be a dict"):
        ops.Attribute(outline="x")


def test_a_multi_conv_hands_its_options_to_the_recorder(device):
    notebook = device.Notebook()
    scope = (
        ops.MultiConv()
        .availableMemoryProportions((0.1, 0.2))
        .partialsTypes(torch.float16)
        .enableConvDithering(True)
        .planType(MultiConvPlanType.Serial)
        .perConvReservedTiles(120)
        .cycleBackOff(0.3)
    )

    with device.recording(notebook), scope:
        F.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2))

    (_, kind, options), end = notebook.events
    assert kind == "multi_conv"
    assert end == ("pop", "multi_conv")
    assert options.available_memory_proportions == (0.1, 0.2)
    assert options.partials_types == "half"
    assert options.plan_type is MultiConvPlanType.Serial


def test_a_multi_conv_does_nothing_on_the_cpu():
    with ops.MultiConv(), ops.MultiConv():
        pass


def test_multi_convs_do_not_nest_on_the_device(device):
    x, w = torch.ones(1, 1, 3), torch.ones(1, 1, 2)

    with (
        pytest.raises(Error, match="Nested"),
        device.recording(device.Notebook()),
        ops.MultiConv(),
        ops.MultiConv(),
    ):
        pass

    with device.recording(device.Notebook()), ops.MultiConv():
        F.conv1d(x, w)


def test_a_multi_conv_without_a_convolution_is_refused(device):
    with (
        pytest.raises(Error, match="Unexpected end"),
        device.recording(device.Notebook()),
        ops.MultiConv(),
    ):
        torch.ones(2) + 1


@pytest.mark.parametrize(
    ("setter", "value", "kind", "fragment"),
    [
        ("availableMemoryProportions", "x", AssertionError, "not a proportion"),
        ("availableMemoryProportions", (0.5, 1.5), ValueError, "between 0 and 1"),
        ("partialsTypes", torch.int32, ValueError, "Invalid partials"),
        ("enableConvDithering", "yes", AssertionError, "not a bool"),
        ("planType", "parallel", AssertionError, "Invalid plan type"),
        ("perConvReservedTiles", 1.5, AssertionError, "not an int"),
        ("cycleBackOff", "x", AssertionError, "not a proportion"),
    ],
)
def test_multi_conv_options_are_checked(setter, value, kind, fragment):
    with pytest.raises(kind, match=fragment):
        getattr(ops.MultiConv(), setter)(value)


def test_compile_hooks_run_in_order_until_removed():
    from pantile.ops import hooks

    calls = []
    first = ops.registerPreCompileHook(lambda: calls.append("first"))
    second = ops.registerPreCompileHook(lambda: calls.append("second"))
    after = ops.registerPostCompileHook(lambda: calls.append("after"))

    hooks.run_pre_compile_hooks()
    hooks.run_post_compile_hooks()
    first.remove()
    hooks.run_pre_compile_hooks()
    second.remove()
    after.remove()

    assert calls == ["first", "second", "after", "second"]


@pytest.mark.parametrize("register", [ops.registerPreCompileHook, ops.registerPostCompileHook])
def test_a_compile_hook_must_be_callable(register):
    with pytest.raises(RuntimeError, match="must be callable"):
        register("print")
