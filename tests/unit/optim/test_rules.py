"""The update rules, against torch.optim bit for bit and against formulas in float64."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from pantile import optim
from pantile.errors import OptimizerError, OptionTypeError

GRADIENTS = [torch.from_numpy(np.random.default_rng(i).normal(size=(3, 4))) for i in range(10)]
START = torch.from_numpy(np.random.default_rng(99).normal(size=(3, 4)))

SAME_AS_TORCH = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {}),
    ("Adam", {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}),
    ("Adam", {"maximize": True, "foreach": True}),
    ("AdamW", {}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.2}),
    ("RMSprop", {}),
    ("RMSprop", {"lr": 0.01, "alpha": 0.9, "momentum": 0.5, "weight_decay": 0.1}),
    ("RMSprop", {"centered": True, "momentum": 0.9}),
]


def parameter(dtype=torch.float32):
    return nn.Parameter(START.to(dtype))


def train(make, dtype=torch.float32, steps=10):
    """The trajectory of one parameter under fixed gradients, and the optimizer."""
    weight = parameter(dtype)
    optimizer = make([weight])
    trajectory = []
    for gradient in GRADIENTS[:steps]:
        weight.grad = gradient.to(dtype)
        optimizer.step()
        trajectory.append(weight.detach().clone())
    return trajectory, optimizer


@pytest.mark.parametrize(("name", "arguments"), SAME_AS_TORCH)
def test_ten_steps_equal_torchs_bit_for_bit(name, arguments):
    expected, _ = train(lambda p: getattr(torch.optim, name)(p, **arguments))

    actual, _ = train(lambda p: getattr(optim, name)(p, **arguments))

    assert all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))


@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("max_weight_norm", [None, 0.5])
def test_lamb_follows_its_formula(bias_correction, max_weight_norm):
    lr, beta1, beta2, eps, decay = 0.05, 0.8, 0.95, 1e-6, 0.1
    w = START.numpy().copy()
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, gradient in enumerate(GRADIENTS, 1):
        g = gradient.numpy()
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        m_hat = m / (1 - beta1**t) if bias_correction else m
        v_hat = v / (1 - beta2**t) if bias_correction else v
        update = m_hat / (np.sqrt(v_hat) + eps) + decay * w
        trust = min(np.linalg.norm(w), max_weight_norm or 65500) / np.linalg.norm(update)
        w = w - lr * trust * update

    actual, _ = train(
        lambda p: optim.LAMB(
            p,
            lr=lr,
            betas=(beta1, beta2),
            eps=eps,
            weight_decay=decay,
            bias_correction=bias_correction,
            max_weight_norm=max_weight_norm,
        ),
        dtype=torch.float64,
    )

    np.testing.assert_allclose(actual[-1].numpy(), w, rtol=1e-12)


def test_the_trust_ratio_of_lamb_is_one_for_zero_weights():
    weight = nn.Parameter(torch.zeros(3))
    optimizer = optim.LAMB([weight], lr=0.5, betas=(0.5, 0.5), eps=0.0, weight_decay=0.0)
    weight.grad = torch.tensor([1.0, -2.0, 4.0])

    optimizer.step()

    # The first corrected direction is the sign of the gradient.
    assert weight.tolist() == [-0.5, 0.5, -0.5]


def test_lamb_leaves_weights_alone_when_there_is_no_direction():
    weight = nn.Parameter(torch.ones(3))
    optimizer = optim.LAMB([weight], weight_decay=0.0)
    weight.grad = torch.zeros(3)

    optimizer.step()

    assert weight.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("centered", [False, True])
def test_the_tensorflow_variant_of_rmsprop_follows_its_formula(momentum, centered):
    lr, alpha, eps, decay = 0.05, 0.9, 1e-3, 0.1
    w = START.numpy().copy()
    square, mean, velocity = np.ones_like(w), np.zeros_like(w), np.zeros_like(w)
    for gradient in GRADIENTS:
        g = gradient.numpy() + decay * w
        square = alpha * square + (1 - alpha) * g * g
        mean = alpha * mean + (1 - alpha) * g
        denominator = np.sqrt(square - (mean**2 if centered else 0) + eps)
        velocity = momentum * velocity + lr * g / denominator
        w = w - velocity

    actual, _ = train(
        lambda p: optim.RMSprop(
            p,
            lr=lr,
            alpha=alpha,
            eps=eps,
            weight_decay=decay,
            momentum=momentum,
            centered=centered,
            use_tf_variant=True,
        ),
        dtype=torch.float64,
    )

    np.testing.assert_allclose(actual[-1].numpy(), w, rtol=1e-12)


def test_adamw_without_bias_correction_follows_its_formula():
    lr, beta1, beta2, eps, decay = 0.05, 0.8, 0.95, 1e-6, 0.1
    w = START.numpy().copy()
    m, v = np.zeros_like(w), np.zeros_like(w)
    for gradient in GRADIENTS:
        g = gradient.numpy()
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        w = w * (1 - lr * decay) - lr * m / (np.sqrt(v) + eps)

    actual, _ = train(
        lambda p: optim.AdamW(
            p, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay, bias_correction=False
        ),
        dtype=torch.float64,
    )

    np.testing.assert_allclose(actual[-1].numpy(), w, rtol=1e-12)


def test_adamw_on_the_host_corrects_all_the_same_where_all_is_strict(monkeypatch):
    monkeypatch.setenv("POPTORCH_STRICT", "1")

    actual, _ = train(lambda p: optim.AdamW(p, lr=0.05, bias_correction=False))
    expected, _ = train(lambda p: torch.optim.AdamW(p, lr=0.05))

    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_max_grad_norm_clips_as_clip_grad_norm_before_the_step(name):
    weights, expected_weights = [parameter(), parameter()], [parameter(), parameter()]
    clipping = getattr(optim, name)(weights, lr=0.1, max_grad_norm=0.7)
    reference = getattr(torch.optim, name)(expected_weights, lr=0.1)

    for first, second in zip(GRADIENTS[:5], GRADIENTS[5:], strict=True):
        for pair in (weights, expected_weights):
            pair[0].grad, pair[1].grad = first.float(), second.float()
        clipping.step()
        torch.nn.utils.clip_grad_norm_(expected_weights, 0.7)
        reference.step()

    assert all(torch.equal(a, e) for a, e in zip(weights, expected_weights, strict=True))


@pytest.mark.parametrize(
    ("make", "types"),
    [
        (lambda p: optim.SGD(p, lr=0.1, momentum=0.9), {"momentum_buffer": torch.float32}),
        (
            lambda p: optim.SGD(p, lr=0.1, momentum=0.9, velocity_accum_type=torch.float16),
            {"momentum_buffer": torch.float16},
        ),
        (
            lambda p: optim.Adam(p, first_order_momentum_accum_type=torch.float16),
            {"exp_avg": torch.float16, "exp_avg_sq": torch.float32},
        ),
        (
            lambda p: optim.AdamW(p, second_order_momentum_accum_type=torch.float16),
            {"exp_avg": torch.float32, "exp_avg_sq": torch.float16},
        ),
        (
            lambda p: optim.RMSprop(
                p, momentum=0.9, centered=True, first_order_momentum_accum_type=torch.float16
            ),
            {
                "square_avg": torch.float32,
                "momentum_buffer": torch.float16,
                "grad_avg": torch.float16,
            },
        ),
        (lambda p: optim.LAMB(p), {"exp_avg": torch.float32, "exp_avg_sq": torch.float32}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_state_has_the_accumulator_types_asked_for(make, types, dtype):
    _, optimizer = train(make, dtype=dtype, steps=2)

    (state,) = optimizer.state.values()
    assert {name: state[name].dtype for name in types} == types


def test_a_half_parameter_with_float_moments_is_updated_in_float():
    expected, _ = train(lambda p: torch.optim.Adam(p, lr=0.5), steps=1)

    actual, _ = train(lambda p: optim.Adam(p, lr=0.5), dtype=torch.float16, steps=1)

    weight = START.half().float()
    gradient = GRADIENTS[0].half().float()
    by_formula = weight - 0.5 * gradient / (gradient.abs() + 1e-8)
    assert actual[0].dtype == torch.float16
    torch.testing.assert_close(actual[0], by_formula.half(), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(actual[0].float(), expected[0], rtol=1e-2, atol=1e-2)


def test_half_velocity_of_a_float_parameter_is_the_rounded_velocity():
    actual, optimizer = train(
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9, velocity_accum_type=torch.float16), steps=2
    )

    first = GRADIENTS[0].float()
    second = first.half().float() * 0.9 + GRADIENTS[1].float()
    (state,) = optimizer.state.values()
    assert torch.equal(state["momentum_buffer"], second.half())
    torch.testing.assert_close(actual[1], START.float() - 0.1 * first - 0.1 * second)


def test_a_parameter_without_a_gradient_is_left_alone():
    moving, still = parameter(), parameter()
    optimizer = optim.LAMB([moving, still])
    moving.grad = GRADIENTS[0].float()

    optimizer.step()

    assert torch.equal(still.detach(), START.float())
    assert not torch.equal(moving.detach(), START.float())


def test_step_hooks_run_once_even_after_a_plain_torch_optimizer_was_made():
    torch.optim.SGD([parameter()], lr=0.1)
    weight = parameter()
    optimizer = optim.SGD([weight], lr=0.1)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    weight.grad = GRADIENTS[0].float()

    optimizer.step()

    assert calls == ["pre"]


def test_step_returns_what_the_closure_returns():
    weight = parameter()
    optimizer = optim.Adam([weight])

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == START.float().square().sum().item()


def test_param_groups_keep_their_own_values():
    first, second = parameter(), parameter()
    optimizer = optim.SGD([{"params": [first], "lr": 1.0}, {"params": [second]}], lr=0.1)
    first.grad = second.grad = torch.ones(3, 4)

    optimizer.step()

    torch.testing.assert_close(first.detach(), START.float() - 1.0)
    torch.testing.assert_close(second.detach(), START.float() - 0.1)


def test_a_learning_rate_scheduler_changes_the_learning_rate():
    optimizer = optim.SGD([parameter()], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    optimizer.step()
    scheduler.step()

    assert optimizer.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_keep_attributes_and_state(duplicate):
    _, optimizer = train(
        lambda p: optim.AdamW(p, lr=0.1, loss_scaling=4.0, bias_correction=False), steps=1
    )

    copied = duplicate(optimizer)

    assert (copied.loss_scaling, copied.bias_correction) == (4.0, False)
    assert not copied.variable_attrs.isConstant("lr")
    (state,), (original,) = copied.state.values(), optimizer.state.values()
    assert torch.equal(state["exp_avg"], original["exp_avg"])


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda p: optim.SGD(p, accum_type=torch.int32), "accum_type"),
        (lambda p: optim.SGD(p, velocity_accum_type=torch.bfloat16), "velocity_accum_type"),
        (
            lambda p: optim.Adam(p, first_order_momentum_accum_type="half"),
            "first_order_momentum_accum_type",
        ),
        (
            lambda p: optim.LAMB(p, second_order_momentum_accum_type=torch.float64),
            "second_order_momentum_accum_type",
        ),
    ],
)
def test_an_accumulator_type_that_is_no_float_is_refused(make, argument):
    with pytest.raises(OptionTypeError, match=f"{argument}=") as caught:
        make([parameter()])

    assert isinstance(caught.value, AssertionError)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda p: optim.Adam(p, amsgrad=True), "amsgrad"),
        (lambda p: optim.AdamW(p, amsgrad=True), "amsgrad"),
        (lambda p: optim.SGD(p, lr=0.1, max_grad_norm=math.nan), "max_grad_norm"),
        (lambda p: optim.SGD(p, lr=0.1, loss_scaling=0.0), "loss_scaling"),
        (lambda p: optim.Adam(p, betas=(0.9,)), "betas"),
        (lambda p: optim.LAMB(p, lr=-1.0), "lr"),
        (lambda p: optim.LAMB(p, betas=(0.9, 1.0)), "betas"),
        (lambda p: optim.LAMB(p, max_weight_norm=-1), "max_weight_norm"),
    ],
)
def test_a_bad_value_is_refused_with_its_name_and_a_fix(make, argument):
    with pytest.raises(OptimizerError, match=argument) as caught:
        make([parameter()])

    assert isinstance(caught.value, ValueError)
    assert caught.value.fix


def test_velocity_scaling_without_the_combined_variant_is_warned_about(caplog):
    optim.SGD([parameter()], lr=0.1, velocity_scaling=2.0)

    assert "velocity_scaling=2.0 has no effect" in caplog.text


def test_velocity_scaling_of_the_combined_variant_is_a_group_attribute(caplog):
    optimizer = optim.SGD([parameter()], lr=0.1, velocity_scaling=2.0, use_combined_accum=True)

    assert optimizer.param_groups[0]["velocity_scaling"] == 2.0
    assert not caplog.records


def test_lamb_has_the_documented_defaults():
    optimizer = optim.LAMB([parameter()])

    assert optimizer.defaults == {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 1e-2,
    }
    assert (optimizer.bias_correction, optimizer.max_weight_norm) == (True, 65500.0)
    assert (optimizer.loss_scaling, optimizer.max_grad_norm) == (1.0, math.inf)


def test_clipping_leaves_the_gradient_tensor_itself_alone():
    weight, gradient = parameter(), GRADIENTS[0].float()
    optimizer = optim.SGD([weight], lr=0.1, max_grad_norm=0.1)
    weight.grad = gradient.clone()
    handed_in = weight.grad

    optimizer.step()

    assert torch.equal(handed_in, gradient)
