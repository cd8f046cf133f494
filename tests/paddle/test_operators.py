"""Every operator of the IPU back-end against Paddle's own kernel."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from tests.paddle import (
    activation_cases,
    arithmetic_cases,
    layer_cases,
    loss_cases,
    shape_cases,
)
from tests.paddle.op_case import Case, check

from pantile.errors import CaptureError, DataDependentError, OperandError
from pantile.paddle import api

_FAMILIES = (activation_cases, arithmetic_cases, layer_cases, loss_cases, shape_cases)
CASES = [case for family in _FAMILIES for case in family.CASES]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_operator_computes_what_paddles_kernel_computes(case: Case) -> None:
    check(case)


# By formula: what only IPU programs have in tests/unit/paddle, draws below.
_WITHOUT_A_KERNEL = {
    "checkpointoutput",
    "custom_nll_loss",
    "custom_op",
    "detach",
    "identity",
    "one_hot",
    "popart_optimizer",
}
_DRAWS = {"gaussian_random", "uniform_random"}
_OF_THE_BACK_END = """
abs acos affine_channel arg_max arg_min argsort asin assign assign_value atan batch_norm bce_loss
bicubic_interp_v2 bilinear_interp_v2 bmm brelu cast ceil checkpointoutput clip concat conv2d
conv2d_transpose cos cosh cross_entropy2 cumsum custom_nll_loss custom_op data_norm depthwise_conv2d
depthwise_conv2d_transpose detach dist dot dropout elementwise_add elementwise_div elementwise_max
elementwise_min elementwise_mod elementwise_mul elementwise_pow elementwise_sub elu equal erf exp
expand expand_as_v2 expand_v2 fill_any_like fill_constant flatten2 flatten_contiguous_range flip
floor gather gaussian_random gelu greater_equal greater_than group_norm hard_shrink hard_sigmoid
hard_swish huber_loss identity identity_loss instance_norm kldiv_loss layer_norm leaky_relu
less_equal less_than linear_interp_v2 log log10 log1p log2 log_softmax logical_and logical_not
logical_or logsigmoid logsumexp lookup_table lookup_table_v2 matmul matmul_v2 max_pool2d_with_index
mean meshgrid mish mul nearest_interp_v2 not_equal one_hot one_hot_v2 p_norm pad3d pool2d
popart_optimizer pow prelu print rank_loss reciprocal reduce_all reduce_any reduce_max reduce_mean
reduce_min reduce_prod reduce_sum relu relu6 reshape2 round rsqrt scale selu shape share_data
sigmoid sigmoid_cross_entropy_with_logits sign silu sin sinh slice softmax
softmax_with_cross_entropy softplus softshrink softsign split sqrt square squeeze2 stack
strided_slice sum swish tan tanh
tanh_shrink thresholded_relu tile top_k top_k_v2 transpose2 trilinear_interp_v2 uniform_random
unsqueeze2 unstack warpctc where yolo_box
"""


def test_every_operator_of_the_ipu_back_end_is_tested() -> None:
    tested = {case.op for case in CASES}

    assert set(_OF_THE_BACK_END.split()) == tested & set(_OF_THE_BACK_END.split()) | (
        _WITHOUT_A_KERNEL | _DRAWS
    )


def test_an_unknown_operator_is_refused_together_with_all_others() -> None:
    main = paddle.static.default_main_program()
    x = paddle.static.data("x", [4])
    hidden = paddle.nn.functional.relu(x)
    out = paddle.trace(paddle.lgamma(hidden).reshape([2, 2]))

    with pytest.raises(CaptureError, match="lgamma, trace"):
        api.compile(main, ["x"], [out], strategy=_inference())
    # What no fetch needs is not run, and need not be known.
    api.compile(main, ["x"], [hidden], strategy=_inference())


def test_operators_on_sequences_of_different_lengths_are_refused() -> None:
    rows = paddle.static.data("rows", [-1, 4], lod_level=1)
    out = paddle.static.nn.sequence_softmax(paddle.static.nn.sequence_pool(rows, "sum"))

    with pytest.raises(CaptureError, match="sequence_pool, sequence_softmax") as refused:
        api.compile(paddle.static.default_main_program(), ["rows"], [out], strategy=_inference())
    assert "(LoD) must be padded" in str(refused.value)


def test_a_constant_tensor_of_the_program_may_shape_a_result() -> None:
    x = paddle.static.data("x", [2, 6])
    size = paddle.shape(x)
    turned = paddle.reshape(x, [size[1], size[0]])

    model = api.compile(
        paddle.static.default_main_program(), ["x"], [turned], strategy=_inference()
    )
    array = np.arange(12, dtype="float32").reshape(2, 6)

    np.testing.assert_array_equal(model.run({"x": array})[0], array.reshape(6, 2))


def test_a_range_is_made_of_constants_and_refused_for_what_is_fed() -> None:
    end = paddle.static.data("end", [1], "int64")
    known = paddle.arange(2, 11, 3)
    fed = paddle.arange(0, end, 1)
    main = paddle.static.default_main_program()

    (result,) = api.compile(main, [], [known], strategy=_inference()).run({})

    np.testing.assert_array_equal(result, [2, 5, 8])
    with pytest.raises(DataDependentError):
        api.compile(main, ["end"], [fed], strategy=_inference())


@pytest.mark.parametrize("phase", ["forward", "backward", "both"])
def test_a_print_shows_the_gradient_unless_only_forward_is_asked_for(
    phase: str, capfd: pytest.CaptureFixture[str]
) -> None:
    x = paddle.static.data("x", [2])
    weight = paddle.create_parameter(
        [2], "float32", default_initializer=paddle.nn.initializer.Constant(0.5)
    )
    seen = paddle.static.Print(x * weight, message="seen", print_phase=phase)
    loss = paddle.sum(3 * seen)
    paddle.optimizer.SGD(0.1).minimize(loss)
    paddle.static.Executor(paddle.CPUPlace()).run(paddle.static.default_startup_program())
    strategy = api.IpuStrategy()
    strategy.set_graph_config(is_training=True)

    model = api.compile(paddle.static.default_main_program(), ["x"], [loss], strategy=strategy)
    model.run({"x": np.float32([1, 4])})

    printed = capfd.readouterr().err
    assert "seen: (0.5000, 2.0000)" in printed
    assert ("seen_gradient: (3.0000, 3.0000)" in printed) == (phase != "forward")


def test_a_variable_of_unknown_shape_that_is_not_fed_is_named_with_its_shape() -> None:
    fed = paddle.static.data("fed", [2])
    other = paddle.static.data("other", [-1, 3])
    out = paddle.full_like(other, 0.5)
    main = paddle.static.default_main_program()

    # The back-end's words, which scripts look for.
    with pytest.raises(OperandError, match=r"'other'(.|\n)*Please check tensor shape setting"):
        api.compile(main, [fed.name], [out], strategy=_inference())


def test_draws_have_the_moments_that_were_asked_for() -> None:
    normal = paddle.normal(2.0, 0.5, [4000])
    uniform = paddle.uniform([4000], min=-1.0, max=3.0)

    model = api.compile(
        paddle.static.default_main_program(), [], [normal, uniform], strategy=_inference()
    )
    drawn, spread = model.run({})

    # Five standard errors: sigma / sqrt(n), and for the uniform law sigma = 4 / sqrt(12).
    assert abs(drawn.mean() - 2.0) < 5 * 0.5 / 4000**0.5
    assert abs(drawn.std() - 0.5) < 5 * 0.5 / 8000**0.5
    assert abs(spread.mean() - 1.0) < 5 * (4 / 12**0.5) / 4000**0.5
    assert spread.min() >= -1.0 and spread.max() <= 3.0


def test_dropout_keeps_the_mean_and_differs_from_run_to_run() -> None:
    x = paddle.static.data("x", [8000])
    kept = paddle.nn.functional.dropout(x, 0.25)

    model = api.compile(paddle.static.default_main_program(), ["x"], [kept], strategy=_inference())
    first, second = (model.run({"x": np.ones(8000, "float32")})[0] for _ in range(2))

    assert set(np.unique(first).round(5)) == {0.0, np.float32(1 / 0.75).round(5)}
    assert abs((first > 0).mean() - 0.75) < 5 * (0.25 * 0.75 / 8000) ** 0.5
    assert (first != second).any()


def _inference() -> api.IpuStrategy:
    strategy = api.IpuStrategy()
    strategy.set_graph_config(is_training=False)
    return strategy
