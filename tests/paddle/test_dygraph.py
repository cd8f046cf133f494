"""Layers that are traced with `to_static` and trained as one step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import pytest

import pantile.paddle


@pytest.fixture(autouse=True)
def dynamic_mode() -> Iterator[None]:
    with pantile.paddle.installed():
        paddle.disable_static()
        yield
        paddle.enable_static()


class Net(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        # No bias: a norm takes it out again, and its gradient is nothing but rounding.
        self.conv = paddle.nn.Conv2D(1, 3, 3, bias_attr=False)
        self.norm = paddle.nn.BatchNorm2D(3)
        self.last = paddle.nn.Linear(3 * 6 * 6, 4)

    def losses(self, x: Any, label: Any) -> Any:
        h = paddle.nn.functional.relu(self.norm(self.conv(x)))
        out = self.last(paddle.flatten(h, 1))
        return out, paddle.nn.functional.cross_entropy(out, label)

    @paddle.jit.to_static(full_graph=True)
    def forward(self, x: Any, label: Any) -> Any:
        out, loss = self.losses(x, label)
        return out, paddle.incubate.identity_loss(loss, reduction=1)


def _data() -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    x = paddle.to_tensor(rng.standard_normal((5, 1, 8, 8)).astype("float32"))
    return x, paddle.to_tensor(rng.integers(0, 4, (5,)))


def _trained_by_paddle(state: Any, make: Any, steps: int) -> tuple[list[float], Any]:
    model = Net()
    model.set_state_dict(state)
    optimizer, losses = make(model), []
    x, label = _data()
    for _ in range(steps):
        _, loss = model.losses(x, label)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses, model.state_dict()


@pytest.mark.parametrize("name", ["SGD", "Adam", "Momentum"])
def test_a_traced_layer_trains_as_dygraph_does(name: str) -> None:
    def make(model: Any) -> Any:
        return getattr(paddle.optimizer, name)(0.01, parameters=model.parameters())

    model = Net()
    state = {key: paddle.to_tensor(value.numpy()) for key, value in model.state_dict().items()}
    expected, after = _trained_by_paddle(state, make, 5)
    strategy = paddle.static.IpuStrategy()
    strategy.set_graph_config(is_training=True, micro_batch_size=5)
    optimizer = make(model)
    strategy.set_optimizer(optimizer)

    x, label = _data()
    losses = [float(model(x, label)[1]) for _ in range(5)]
    strategy.release_patch()
    paddle.base.core.IpuBackend.get_instance().weights_to_host()

    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    for key, want in after.items():
        np.testing.assert_allclose(
            model.state_dict()[key].numpy(), want.numpy(), rtol=1e-4, atol=1e-5, err_msg=key
        )


def test_a_scheduler_changes_the_rate_without_compiling_again() -> None:
    def make(model: Any) -> Any:
        scheduler = paddle.optimizer.lr.StepDecay(0.1, 1, gamma=0.5)
        return paddle.optimizer.SGD(scheduler, parameters=model.parameters())

    model = Net()
    strategy = paddle.static.IpuStrategy()
    strategy.set_graph_config(is_training=True, micro_batch_size=5)
    optimizer = make(model)
    strategy.set_optimizer(optimizer)
    x, label = _data()

    model(x, label)
    optimizer._learning_rate.step()
    rate = strategy.get_option("lr")
    model(x, label)
    strategy.release_patch()

    assert rate == pytest.approx(0.05)
    assert len(Net.forward.program_cache) <= 1 or not strategy.need_compile


def test_a_traced_layer_infers() -> None:
    model = Net()
    model.eval()
    strategy = paddle.static.IpuStrategy()
    strategy.set_graph_config(is_training=False, micro_batch_size=5)
    x, label = _data()

    out, _ = model(x, label)
    strategy.release_patch()

    expected, _ = model.losses(x, label)
    np.testing.assert_allclose(out.numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)


def test_training_without_an_optimizer_is_refused() -> None:
    model = Net()
    strategy = paddle.static.IpuStrategy()
    strategy.set_graph_config(is_training=True, micro_batch_size=5)

    with pytest.raises(pantile.errors.OptimizerError, match="set_optimizer"):
        model(*_data())
    strategy.release_patch()


class Losses(paddle.nn.Layer):
    """A layer whose loss is told by nothing but its operator."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear = paddle.nn.Linear(64, 4)
        self.kind = kind

    def eager(self, x: Any, label: Any) -> Any:
        out = self.linear(paddle.flatten(x, 1))
        if self.kind == "unreduced":
            return paddle.nn.functional.cross_entropy(out, label, reduction="none")
        if self.kind == "binary":
            share = paddle.nn.functional.sigmoid(out)
            target = paddle.nn.functional.one_hot(label, 4)
            return paddle.nn.functional.binary_cross_entropy(share, target)
        return paddle.mean(paddle.nn.functional.cross_entropy(out, label, reduction="none"))

    @paddle.jit.to_static(full_graph=True)
    def forward(self, x: Any, label: Any = None) -> Any:
        return self.eager(x, label)


@pytest.mark.parametrize("kind", ["mean", "binary", "unreduced"])
def test_the_loss_is_found_by_its_operator(kind: str) -> None:
    x, label = _data()
    losses = {}
    paddle.seed(1)
    model = Losses(kind)
    weight = model.linear.weight.numpy()
    optimizer = paddle.optimizer.SGD(0.05, parameters=model.parameters())
    strategy = paddle.static.IpuStrategy()
    strategy.set_graph_config(is_training=True, micro_batch_size=5)
    strategy.set_optimizer(optimizer)
    losses["ours"] = [model(x, label).numpy().copy() for _ in range(4)]
    strategy.release_patch()

    other = Losses(kind)
    other.linear.weight.set_value(weight)
    optimizer = paddle.optimizer.SGD(0.05, parameters=other.parameters())
    losses["theirs"] = []
    for _ in range(4):
        loss = other.eager(x, label)
        losses["theirs"].append(loss.numpy().copy())
        loss.sum().backward()
        optimizer.step()
        optimizer.clear_grad()

    for ours, theirs in zip(losses["ours"], losses["theirs"], strict=True):
        np.testing.assert_allclose(ours.ravel(), theirs.ravel(), rtol=1e-5, atol=1e-6)


def test_state_that_was_saved_and_loaded_goes_on_as_if_nothing_had_been(tmp_path: Any) -> None:
    x, label = _data()
    results = []
    for interrupted in (False, True):
        paddle.seed(2)
        model = Net()
        optimizer = paddle.optimizer.Adam(0.01, parameters=model.parameters())
        strategy = paddle.static.IpuStrategy()
        strategy.set_graph_config(is_training=True, micro_batch_size=5)
        strategy.set_optimizer(optimizer)
        losses = [float(model(x, label)[1]) for _ in range(3)]
        if interrupted:
            paddle.base.core.IpuBackend.get_instance().weights_to_host()
            paddle.save(model.state_dict(), str(tmp_path / "net.pdparams"))
            paddle.save(optimizer.state_dict(), str(tmp_path / "net.pdopt"))
            model.set_state_dict(paddle.load(str(tmp_path / "net.pdparams")))
            optimizer.set_state_dict(paddle.load(str(tmp_path / "net.pdopt")))
            strategy.set_options({"num_ipus": 1})  # any option asks for a new compilation
        losses += [float(model(x, label)[1]) for _ in range(3)]
        strategy.release_patch()
        results.append(losses)

    np.testing.assert_allclose(results[1], results[0], rtol=1e-6)


class Half(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.conv = paddle.nn.Conv2D(1, 2, 2)

    def forward(self, x: Any, label: Any) -> Any:
        share = paddle.nn.functional.softmax(paddle.flatten(self.conv(x), 1))
        loss = paddle.nn.functional.cross_entropy(share, label, reduction="none", use_softmax=False)
        return share, paddle.incubate.identity_loss(loss, 1)


def test_a_traced_layer_trains_in_half_precision() -> None:
    x, label = _data()
    losses = []
    for half in (False, True):
        paddle.seed(4)
        specs = [
            paddle.static.InputSpec([5, 1, 8, 8], "float32", "x"),
            paddle.static.InputSpec([5], "int64", "label"),
        ]
        model = paddle.jit.to_static(Half(), input_spec=specs)
        optimizer = paddle.optimizer.Adam(0.01, parameters=model.parameters())
        strategy = paddle.static.IpuStrategy()
        strategy.set_graph_config(is_training=True, micro_batch_size=5)
        strategy.set_precision_config(enable_fp16=half)
        strategy.set_optimizer(optimizer)
        fed = x.astype("float16") if half else x
        losses.append([float(model(fed, label)[1]) for _ in range(20)])
        paddle.base.core.IpuBackend.get_instance().weights_to_host()
        strategy.release_patch()
        assert str(model.conv.weight.dtype) == f"paddle.float{16 if half else 32}"

    assert losses[0][-1] < losses[0][0] - 0.1
    np.testing.assert_allclose(losses[1], losses[0], atol=1e-2)
    assert losses[1] != losses[0]
