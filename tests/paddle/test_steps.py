"""What one `Executor.run` of a compiled program does: micro-batches, updates, fetches, weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle
import pytest
from tests.paddle.networks import (
    Built,
    assert_close,
    batches,
    classifier,
    dense,
    joined,
    persistables,
    train_with_paddle,
    values_in,
)

from pantile.errors import InputMismatch, OptimizerError
from pantile.paddle import api


def _strategy(rows: int = 2, *, training: bool = True, **options: Any) -> api.IpuStrategy:
    strategy = api.IpuStrategy()
    strategy.set_graph_config(is_training=training, micro_batch_size=rows)
    strategy.set_options(options)
    return strategy


def _momentum() -> Built:
    optimizer = paddle.optimizer.Momentum(0.05, weight_decay=paddle.regularizer.L2Decay(0.01))
    return classifier(optimizer.minimize, network=dense, size=8)


def _compile(built: Built, strategy: api.IpuStrategy, scope: Any) -> api.CompiledProgram:
    return api.compile(
        built.main, ["x", "y"], [built.loss, built.prediction], strategy=strategy, scope=scope
    )


def test_without_accumulation_every_micro_batch_is_an_update() -> None:
    built, feeds = _momentum(), batches(6, 2, size=8)
    theirs, ours = built.start(), built.start()
    expected = train_with_paddle(built, theirs, feeds)

    model = _compile(built, _strategy(batches_per_step=6), ours)
    losses, predictions = model.run(joined(feeds))
    model.weights_to_host()

    assert losses.shape == (6,) and predictions.shape == (6, 2, 10)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    names = persistables(built)
    assert_close(values_in(ours, names), values_in(theirs, names), 1e-6)


def test_accumulation_and_replicas_train_on_the_mean_of_their_gradients() -> None:
    built, feeds = _momentum(), batches(12, 2, size=8)
    theirs, ours = built.start(), built.start()
    # A step of 3 accumulations on 2 replicas is one update with 6 times the rows.
    train_with_paddle(built, theirs, [joined(feeds[:6]), joined(feeds[6:])])
    strategy = _strategy(
        batches_per_step=2,
        enable_gradient_accumulation=True,
        accumulation_factor=3,
        enable_replicated_graphs=True,
        replicated_graph_count=2,
    )

    model = _compile(built, strategy, ours)
    losses, predictions = model.run(joined(feeds))
    model.weights_to_host()

    assert losses.shape == (2, 3, 2) and predictions.shape == (2, 3, 2, 2, 10)
    names = persistables(built)
    assert_close(values_in(ours, names), values_in(theirs, names), 1e-6)


def test_the_native_engine_trains_to_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANTILE_ENGINE", "native")
    scheduler = paddle.optimizer.lr.StepDecay(1e-2, 1, gamma=0.5)
    clip = paddle.nn.ClipGradByGlobalNorm(0.5)
    built = classifier(paddle.optimizer.Adam(scheduler, grad_clip=clip).minimize)
    feeds = batches(8, 2)
    theirs, ours = built.start(), built.start()
    expected = []
    for half in (feeds[:4], feeds[4:]):
        expected += train_with_paddle(built, theirs, half)
        scheduler.step()
    strategy = _strategy(2, batches_per_step=4)

    scheduler.step(0)
    model = _compile(built, strategy, ours)
    losses = []
    for half in (feeds[:4], feeds[4:]):
        losses += model.run(joined(half))[0].tolist()
        scheduler.step()
    model.weights_to_host()

    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    names = [n for n in persistables(built) if "moment" not in n]
    assert_close(values_in(ours, names), values_in(theirs, names), 2e-5)
    decisions = model.session.executor.nativeDecisions()
    assert [decision["lowering"] for decision in decisions] == ["kernels"]


@pytest.mark.parametrize(
    ("options", "leading"),
    [
        ({}, ()),
        ({"batches_per_step": 4}, (4,)),
        ({"enable_gradient_accumulation": True, "accumulation_factor": 2}, (2,)),
        ({"enable_replicated_graphs": True, "replicated_graph_count": 3}, (3,)),
        ({"enable_gradient_accumulation": True, "accumulation_factor": 1}, (1,)),
    ],
    ids=["one", "steps", "accumulation", "replicas", "accumulation-of-one"],
)
def test_fetches_have_a_dim_for_each_way_of_repeating(options: Any, leading: Any) -> None:
    built = _momentum()
    model = _compile(built, _strategy(**options), built.start())
    count = int(np.prod(leading))

    losses, predictions = model.run(joined(batches(count, 2, size=8)))

    assert losses.shape == (leading or (1,))
    assert predictions.shape == (*leading, 2, 10)


def test_the_scope_is_stale_until_weights_to_host() -> None:
    built = _momentum()
    scope, names = built.start(), persistables(built)
    before = values_in(scope, names)
    model = _compile(built, _strategy(), scope)

    model.run(batches(1, 2, size=8)[0])
    assert_close(values_in(scope, names), before, 0.0)
    model.weights_to_host()

    after = values_in(scope, names)
    assert all((after[name] != before[name]).any() for name in names)
    assert any("_velocity_0" in name for name in names)


def test_an_evaluating_run_changes_nothing() -> None:
    built = classifier(paddle.optimizer.Adam(1e-2).minimize)
    strategy, scope = _strategy(4), built.start()
    model = _compile(built, strategy, scope)
    feed, names = batches(1, 4)[0], persistables(built)

    first = model.run(feed)[0]
    strategy.set_options({"runtime_options.enable_eval": True})
    evaluated = [model.run(feed)[0] for _ in range(2)]
    model.weights_to_host()
    before = values_in(scope, names)
    strategy.set_options({"runtime_options.enable_eval": False})
    trained = model.run(feed)[0]
    model.weights_to_host()

    assert evaluated[0] == evaluated[1] < first
    np.testing.assert_allclose(trained, evaluated[0], rtol=1e-6)
    assert any((values_in(scope, names)[n] != before[n]).any() for n in names)


def test_fewer_rows_are_filled_up_and_cut_again_with_a_timeout() -> None:
    built = classifier(None, network=dense, size=8)
    strategy = _strategy(8, training=False, enable_model_runtime_executor=True, timeout_ms=10.0)
    scope, feed = built.start(), batches(1, 5, size=8)[0]
    model = api.compile(built.main, ["x"], [built.prediction], strategy=strategy, scope=scope)
    with paddle.static.scope_guard(scope):
        (expected,) = paddle.static.Executor(paddle.CPUPlace()).run(
            built.main, feed=feed, fetch_list=[built.prediction]
        )

    (prediction,) = model.run({"x": feed["x"]})

    np.testing.assert_allclose(prediction, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputMismatch, match="up to 8"):
        model.run({"x": np.zeros((9, 1, 8, 8), "float32")})


def test_feeds_are_narrowed_to_the_declared_types() -> None:
    built = classifier(None, network=dense, size=8)
    model = _compile(built, _strategy(2, training=False), built.start())
    feed = batches(1, 2, size=8)[0]

    single = model.run(feed)
    double = model.run({"x": feed["x"].astype("float64"), "y": feed["y"].astype("int32")})

    for left, right in zip(single, double, strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_wrong_number_of_rows_names_the_feed_and_the_numbers() -> None:
    built = _momentum()
    model = _compile(built, _strategy(batches_per_step=3), built.start())

    with pytest.raises(InputMismatch, match=r"feed 'x' .* 384 = 3 micro-batches"):
        model.run(joined(batches(2, 2, size=8)))
    with pytest.raises(InputMismatch, match="feed 'y' is missing"):
        model.run({"x": joined(batches(3, 2, size=8))["x"]})
    with pytest.raises(InputMismatch, match="fetch_list names nothing_such"):
        model.run(joined(batches(3, 2, size=8)), ["nothing_such"])


def test_a_program_without_optimizer_cannot_be_trained() -> None:
    built = classifier(None, network=dense, size=8)

    with pytest.raises(OptimizerError, match="holds no optimizer"):
        _compile(built, _strategy(), built.start())


def test_no_gradient_flows_past_a_stopped_variable() -> None:
    main, startup = paddle.static.Program(), paddle.static.Program()
    startup.random_seed = 7
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [2, 3])
        hidden = paddle.static.nn.fc(x, 4)
        stopped = paddle.tanh(hidden)
        stopped.stop_gradient = True
        loss = paddle.mean(paddle.static.nn.fc(stopped, 1) + paddle.mean(hidden))
        paddle.optimizer.SGD(0.5).minimize(loss)
    built = Built(main, startup, loss, hidden)
    theirs, ours = built.start(), built.start()
    feeds = [{"x": np.ones((2, 3), "float32")}] * 3
    train_with_paddle(built, theirs, feeds)

    model = api.compile(main, ["x"], [loss], strategy=_strategy(), scope=ours)
    for feed in feeds:
        model.run(feed)
    model.weights_to_host()

    names = persistables(built)
    assert_close(values_in(ours, names), values_in(theirs, names), 1e-6)


def test_loss_scaling_leaves_the_update_as_it_is() -> None:
    built, feeds = _momentum(), batches(3, 2, size=8)
    results = []
    for scaling in (1.0, 128.0):
        scope = built.start()
        model = _compile(built, _strategy(loss_scaling=scaling), scope)
        for feed in feeds:
            model.run(feed)
        model.weights_to_host()
        results.append(values_in(scope, persistables(built)))

    assert_close(results[1], results[0], 1e-7)


def test_tags_of_a_shard_guard_reach_the_graph() -> None:
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [2, 3])
        with api.shard_guard(index=0, stage=0):
            h = paddle.tanh(x)
            with api.shard_guard(index=1, stage=1):
                inner = paddle.exp(h)
        with api.shard_guard(index=1, stage=1):
            out = inner * 2.0
    strategy = _strategy(training=False)
    strategy.set_graph_config(num_ipus=2, is_training=False, enable_manual_shard=True)

    model = api.compile(main, ["x"], [out], strategy=strategy)
    model.run({"x": np.zeros((2, 3), "float32")})

    places = {op.type: op.attributes.get("ipu_index") for op in model.parts.forward}
    assert places == {"tanh": 0, "exp": 1, "scale": 1}
    stages = {
        node.target.overloadpacket.__name__: node.meta["tag"].stage
        for graph in model.graphs
        for node in graph.nodes
        if node.op == "call_function"
    }
    assert stages["tanh"] == 0 and stages["exp"] == stages["mul"] == 1


def test_a_program_is_shared_out_equally_when_nobody_placed_it() -> None:
    x = paddle.static.data("x", [2, 3])
    out = paddle.exp(paddle.tanh(paddle.sqrt(paddle.abs(x))))
    strategy = _strategy(training=False, need_avg_shard=True, num_ipus=2)

    model = api.compile(paddle.static.default_main_program(), ["x"], [out], strategy=strategy)

    assert [op.attributes["ipu_stage"] for op in model.parts.forward] == [0, 0, 1, 1]


def test_the_first_run_has_the_bits_of_later_ones() -> None:
    # One image and a small kernel: torch's own convolution and the compiled one round differently.
    x = paddle.static.data("x", [1, 3, 10, 10])
    out = paddle.nn.Conv2D(3, 3, 3, bias_attr=False)(x)
    paddle.static.Executor(paddle.CPUPlace()).run(paddle.static.default_startup_program())
    strategy = api.IpuStrategy()
    strategy.set_graph_config(is_training=False)
    model = api.compile(paddle.static.default_main_program(), ["x"], [out], strategy=strategy)
    fed = {"x": np.random.default_rng(4).uniform(size=(1, 3, 10, 10)).astype("float32")}

    first, second, third = (model.run(fed)[0] for _ in range(3))

    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, third)
