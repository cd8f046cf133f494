"""Custom operators: PopART's own by name, the user's by the CPU kernel of their Paddle half."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest
import torch
from tests.paddle.networks import Built, assert_close, train_with_paddle, values_in

import pantile.paddle
from pantile.errors import CaptureError
from pantile.paddle import api
from pantile.paddle.custom_sources import without_graphcore_libraries

_rng = np.random.default_rng(0)


def _strategy(training: bool = False, **custom: str) -> api.IpuStrategy:
    strategy = api.IpuStrategy()
    strategy.set_graph_config(is_training=training)
    if custom:
        strategy.add_custom_op(**custom)
    return strategy


def test_an_operator_of_the_users_runs_paddles_kernel_and_its_gradient() -> None:
    # lgamma has no translation: as a custom operator, Paddle's kernel computes it.
    main, startup = paddle.static.Program(), paddle.static.Program()
    main.random_seed = startup.random_seed = 7
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [4, 3])
        weight = paddle.create_parameter([4, 3], "float32", name="weight")
        loss = paddle.mean(paddle.lgamma(paddle.exp(weight + x)))
        paddle.optimizer.SGD(0.5).minimize(loss)
    built = Built(main, startup, loss, None)
    feeds = [{"x": _rng.uniform(0.5, 2, (4, 3)).astype("float32")} for _ in range(4)]
    theirs, ours = built.start(), built.start()
    expected = train_with_paddle(built, theirs, feeds)

    with pytest.raises(CaptureError, match="lgamma"):
        api.compile(main, ["x"], [loss], strategy=_strategy(True), scope=ours)
    custom = _strategy(True, paddle_op="lgamma")
    model = api.compile(main, ["x"], [loss], strategy=custom, scope=ours)
    losses = [float(model.run(feed)[0][0]) for feed in feeds]

    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    model.weights_to_host()
    assert_close(values_in(ours, ["weight"]), values_in(theirs, ["weight"]), 1e-5)


def test_an_operator_of_popart_is_found_by_its_name() -> None:
    x = paddle.static.data("x", [3])
    # What a custom operator computes is what it is mapped to, whatever its name says.
    out = paddle.lgamma(x)

    strategy = _strategy(paddle_op="lgamma", popart_op="Tanh", domain="ai.onnx")
    model = api.compile(paddle.static.default_main_program(), ["x"], [out], strategy=strategy)
    fed = np.float32([-1, 0.5, 2])

    np.testing.assert_allclose(model.run({"x": fed})[0], np.tanh(fed), rtol=1e-6)


def test_an_unknown_operator_of_popart_is_refused_and_a_function_replaces_it() -> None:
    x = paddle.static.data("x", [3])
    out = paddle.lgamma(x)
    main, custom = paddle.static.default_main_program(), {"popart_op": "NoSuch"}
    strategy = _strategy(paddle_op="lgamma", domain="ai.graphcore", **custom)

    with pytest.raises(CaptureError, match="lgamma"):
        api.compile(main, ["x"], [out], strategy=strategy)
    pantile.paddle.register_operator("lgamma", torch.Tensor.square)
    try:
        model = api.compile(main, ["x"], [out], strategy=_strategy(paddle_op="lgamma"))
    finally:
        pantile.paddle.unregister_operator("lgamma")

    np.testing.assert_allclose(model.run({"x": np.float32([1, 2, 3])})[0], [1, 4, 9])


_PADDLE_HALF = """
#include "paddle/extension.h"

std::vector<paddle::Tensor> Forward(const paddle::Tensor& x, float factor) {
  auto out = paddle::empty_like(x);
  const float* from = x.data<float>();
  float* to = out.data<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = factor * from[i] * from[i] * from[i];
  return {out};
}
std::vector<paddle::Tensor> Backward(const paddle::Tensor& x, const paddle::Tensor& g,
                                     float factor) {
  auto out = paddle::empty_like(x);
  const float* from = x.data<float>();
  const float* given = g.data<float>();
  float* to = out.data<float>();
  for (int64_t i = 0; i < x.numel(); ++i) to[i] = 3 * factor * from[i] * from[i] * given[i];
  return {out};
}
std::vector<std::vector<int64_t>> Shape(std::vector<int64_t> x) { return {x}; }
std::vector<paddle::DataType> Type(paddle::DataType x) { return {x}; }

PD_BUILD_OP(scaled_cube).Inputs({"X"}).Outputs({"Out"}).Attrs({"factor: float"})
    .SetKernelFn(PD_KERNEL(Forward)).SetInferShapeFn(PD_INFER_SHAPE(Shape))
    .SetInferDtypeFn(PD_INFER_DTYPE(Type));
PD_BUILD_GRAD_OP(scaled_cube).Inputs({"X", paddle::Grad("Out")}).Outputs({paddle::Grad("X")})
    .Attrs({"factor: float"}).SetKernelFn(PD_KERNEL(Backward));
"""


@pytest.mark.slow  # g++ takes half a minute for Paddle's headers
def test_an_operator_of_two_halves_is_loaded_and_trained(tmp_path: Path) -> None:
    paddle_half, popart_half = tmp_path / "cube.cc", tmp_path / "cube_ipu.cc"
    paddle_half.write_text(_PADDLE_HALF)
    popart_half.write_text("#include <popart/op.hpp>\n")
    with pantile.paddle.installed():
        loaded = paddle.utils.cpp_extension.load(
            name="cube_ops",
            sources=[str(paddle_half), str(popart_half)],
            extra_cxx_cflags=["-DONNX_NAMESPACE=onnx"],
            extra_ldflags=["-lpopfloat"],
            build_directory=str(tmp_path),
        )
        x = paddle.static.data("x", [3])
        weight = paddle.create_parameter(
            [3], "float32", default_initializer=paddle.nn.initializer.Constant(2.0)
        )
        loss = paddle.sum(loaded.scaled_cube(weight * x, factor=0.5))
        paddle.optimizer.SGD(0.1).minimize(loss)
        executor = paddle.static.Executor(paddle.IPUPlace())
        executor.run(paddle.static.default_startup_program())
        strategy = paddle.static.IpuStrategy()
        strategy.set_graph_config(is_training=True)
        strategy.add_custom_op(paddle_op="scaled_cube", popart_op="Cube", domain="custom.ops")
        program = paddle.static.IpuCompiledProgram(ipu_strategy=strategy).compile(
            ["x"], [loss.name]
        )
        fed = np.float32([1, 0.5, -1])
        losses = [executor.run(program, feed={"x": fed}, fetch_list=[loss])[0] for _ in range(3)]

    held, expected = np.full(3, 2.0), []
    for _ in range(3):
        expected.append((0.5 * (held * fed) ** 3).sum())
        held = held - 0.1 * 1.5 * (held * fed) ** 2 * fed
    np.testing.assert_allclose(np.ravel(losses), expected, rtol=1e-5)


def test_libraries_of_graphcore_are_left_out_of_the_linkers_flags() -> None:
    given = ["-lpopfloat", "-lm", "-L/usr/lib", "-lpoplar", "-lpopart", "-lgcl"]

    assert without_graphcore_libraries(given) == ["-lm", "-L/usr/lib"]
