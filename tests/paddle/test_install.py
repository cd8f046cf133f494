"""The IPU API in the stock wheel: what scripts call, and taking it out again."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import numpy as np
import paddle
import pytest
from tests.paddle.networks import (
    assert_close,
    batches,
    classifier,
    dense,
    joined,
    persistables,
    train_with_paddle,
    values_in,
)

import pantile.paddle
from pantile.errors import OptionError


@pytest.fixture
def ipu() -> Iterator[None]:
    with pantile.paddle.installed():
        yield


def test_uninstall_leaves_paddle_as_it_was() -> None:
    core = paddle.base.core
    owners = (core, paddle, paddle.base, paddle.static.IpuCompiledProgram, paddle.static.Executor)
    owners += (paddle.device, paddle.inference, paddle.utils, paddle.inference.Config)
    before = [dict(vars(owner)) for owner in owners]

    pantile.paddle.install()
    pantile.paddle.install()
    assert paddle.is_compiled_with_ipu()
    pantile.paddle.uninstall()
    pantile.paddle.uninstall()

    assert [dict(vars(owner)) for owner in owners] == before
    assert not paddle.is_compiled_with_ipu()
    with pytest.raises(ImportError):
        importlib.import_module("paddle.fluid")


def test_another_release_is_refused_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pantile.paddle.wheel.installed_version", lambda: "3.3.1")

    with pytest.raises(pantile.errors.Error, match=r"Paddle 3.3.1 is installed; .* 2.6.2"):
        pantile.paddle.install()
    assert not pantile.paddle.is_installed()


@pytest.mark.usefixtures("ipu")
def test_a_static_script_trains_through_paddles_executor() -> None:
    built = classifier(paddle.optimizer.Adam(1e-3).minimize, network=dense, batch=1, size=8)
    feeds = batches(8, 1, size=8)
    theirs, ours = built.start(), built.start()
    expected = train_with_paddle(built, theirs, feeds)
    seen: list[tuple[int, int]] = []
    strategy = paddle.static.IpuStrategy()
    strategy.set_graph_config(num_ipus=1, is_training=True, micro_batch_size=1)
    strategy.set_pipelining_config(enable_pipelining=False, batches_per_step=8)
    strategy.set_options({"compilation_progress_logger": lambda *at: seen.append(at)})

    compiled = paddle.static.IpuCompiledProgram(built.main, ours, strategy)
    program = compiled.compile(["x", "y"], [built.loss.name])
    executor = paddle.static.Executor(paddle.IPUPlace())
    (losses,) = executor.run(program, feed=joined(feeds), fetch_list=[[built.loss]])
    compiled._backend.weights_to_host()

    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert program.org_program is built.main and isinstance(program, paddle.static.Program)
    assert seen == [(percent, 100) for percent in range(101)]
    names = persistables(built)
    assert_close(values_in(ours, names), values_in(theirs, names), 1e-5)


@pytest.mark.usefixtures("ipu")
def test_the_scheduler_of_a_program_sets_the_rate_of_each_run() -> None:
    scheduler = paddle.optimizer.lr.StepDecay(0.1, 2, gamma=0.1)
    built = classifier(paddle.optimizer.SGD(scheduler).minimize, network=dense, size=8)
    feeds = batches(6, 2, size=8)
    theirs, ours = built.start(), built.start()
    expected = train_with_paddle(built, theirs, feeds, scheduler)
    strategy = paddle.static.IpuStrategy()
    strategy.set_graph_config(is_training=True, micro_batch_size=2)

    scheduler.step(0)
    compiled = paddle.static.IpuCompiledProgram(built.main, ours, strategy)
    program = compiled.compile(["x", "y"], [built.loss.name])
    assert program.lr_scheduler is scheduler
    executor, losses = paddle.static.Executor(paddle.IPUPlace()), []
    for feed in feeds:
        losses.append(executor.run(program, feed=feed, fetch_list=[built.loss])[0].item())
        program.lr_scheduler.step()

    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.usefixtures("ipu")
def test_ordinary_programs_still_run_on_the_cpu() -> None:
    x = paddle.static.data("x", [3])
    doubled = x * 2

    (result,) = paddle.static.Executor(paddle.CPUPlace()).run(
        feed={"x": np.float32([1, 2, 3])}, fetch_list=[doubled]
    )

    np.testing.assert_array_equal(result, [2, 4, 6])


@pytest.mark.usefixtures("ipu")
def test_places_and_devices_have_the_names_of_an_ipu_build(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PANTILE_PADDLE_IPUS", "4")
    place = paddle.set_device("ipu")

    assert isinstance(place, paddle.IPUPlace) and str(place) == "Place(ipu:0)"
    assert paddle.get_device() == "ipus:{0-3}"
    assert isinstance(paddle.device.IPUPlace(), paddle.IPUPlace)
    paddle.set_device("cpu")
    assert paddle.get_device() == "cpu"
    paddle.utils.run_check()
    assert "4 software IPUs" in capsys.readouterr().out


@pytest.mark.usefixtures("ipu")
def test_guards_write_the_attributes_that_programs_carry() -> None:
    x = paddle.static.data("x", [2, 3])
    with paddle.static.ipu_shard_guard(index=1, stage=2):
        paddle.tanh(x)
    wrapped = paddle.static.set_ipu_shard(paddle.exp, index=3)
    wrapped(x)

    first, second = paddle.static.default_main_program().global_block().ops
    assert (first.attr("ipu_index"), first.attr("ipu_stage")) == (1, 2)
    assert second.attr("ipu_index") == 3 and not second.has_attr("ipu_stage")


@pytest.mark.usefixtures("ipu")
def test_a_strategy_checks_its_options_as_an_ipu_build_does() -> None:
    strategy = paddle.static.IpuStrategy()

    with pytest.raises(RuntimeError, match="num_ipus > 1"):
        strategy.set_graph_config(num_ipus=1, enable_manual_shard=True)
    with pytest.raises(RuntimeError, match="enable_manual_shard"):
        strategy.set_pipelining_config(enable_pipelining=True)
    with pytest.raises(OptionError, match="cannot find option"):
        strategy.set_options({"no_such_option": 1})
    with pytest.raises(OptionError, match="loss_scaling"):
        strategy.set_options({"loss_scaling": 2})
    assert strategy.get_option("batches_per_step") == 1
    assert len(strategy._ipu_strategy.get_all_option_names()) == 115


@pytest.mark.usefixtures("ipu")
def test_a_saved_model_is_read_by_the_inference_api(tmp_path: pytest.TempPathFactory) -> None:
    built = classifier(None, network=dense, size=8)
    scope, feed = built.start(), batches(1, 3, size=8)[0]
    prefix, executor = str(tmp_path / "model"), paddle.static.Executor(paddle.CPUPlace())
    with paddle.static.scope_guard(scope):
        x = built.main.global_block().var("x")
        paddle.static.save_inference_model(
            prefix, [x], [built.prediction], executor, program=built.main
        )
        (expected,) = executor.run(built.main, feed=feed, fetch_list=[built.prediction])
    settings = tmp_path / "ipu.txt"
    settings.write_text("ipu_device_num,1\nipu_micro_batch_size,3\n")

    config = paddle.inference.Config(f"{prefix}.pdmodel", f"{prefix}.pdiparams")
    config.enable_ipu()
    config.load_ipu_config(str(settings))
    predictor = paddle.inference.create_predictor(config)
    predictor.get_input_handle("x").copy_from_cpu(feed["x"])
    assert predictor.run()
    (name,) = predictor.get_output_names()

    np.testing.assert_allclose(
        predictor.get_output_handle(name).copy_to_cpu(), expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.usefixtures("ipu")
def test_a_stock_predictor_is_still_made_without_enable_ipu(
    tmp_path: pytest.TempPathFactory,
) -> None:
    built = classifier(None, network=dense, size=8)
    scope, prefix = built.start(), str(tmp_path / "model")
    with paddle.static.scope_guard(scope):
        x = built.main.global_block().var("x")
        paddle.static.save_inference_model(
            prefix,
            [x],
            [built.prediction],
            paddle.static.Executor(paddle.CPUPlace()),
            program=built.main,
        )

    config = paddle.inference.Config(f"{prefix}.pdmodel", f"{prefix}.pdiparams")
    predictor = paddle.inference.create_predictor(config)

    assert isinstance(predictor, paddle.inference.Predictor)


@pytest.mark.usefixtures("ipu")
def test_half_precision_programs_train() -> None:
    built = classifier(None, network=dense, batch=4, size=8)
    scope = built.start()
    with (
        paddle.static.program_guard(built.main, built.startup),
        paddle.static.scope_guard(scope),
    ):
        names = paddle.static.amp.cast_model_to_fp16(built.main, use_fp16_guard=False)
        paddle.static.amp.cast_parameters_to_fp16(
            paddle.CPUPlace(), built.main, to_fp16_var_names=names
        )
        loss = built.main.global_block().var(built.loss.name)
        paddle.optimizer.SGD(0.05).minimize(loss)
        startup = paddle.static.default_startup_program()
        rates = [v.name for v in built.main.list_vars() if "learning_rate" in v.name]
        paddle.static.Executor(paddle.CPUPlace()).run(
            startup._prune(rates) if hasattr(startup, "_prune") else startup
        )
    strategy = paddle.static.IpuStrategy()
    strategy.set_graph_config(is_training=True, micro_batch_size=4)
    strategy.set_precision_config(enable_fp16=True)

    compiled = paddle.static.IpuCompiledProgram(built.main, scope, strategy)
    program = compiled.compile(["x", "y"], [built.loss.name])
    feed = batches(1, 4, size=8)[0]
    feed["x"] = feed["x"].astype("float16")
    losses = [
        paddle.static.Executor(paddle.IPUPlace())
        .run(program, feed=feed, fetch_list=[built.loss.name])[0]
        .item()
        for _ in range(5)
    ]

    assert losses[-1] < losses[0] - 0.05


@pytest.mark.usefixtures("ipu")
def test_a_program_that_is_cast_after_minimize_decays_its_weights() -> None:
    array = np.random.default_rng(0).standard_normal((4, 3)).astype("float32")
    x = paddle.static.data("x", [4, 3])
    loss = paddle.mean(paddle.static.nn.fc(x, 2, bias_attr=False) ** 2)
    paddle.optimizer.Momentum(0.1, weight_decay=paddle.regularizer.L2Decay(0.5)).minimize(loss)
    main, startup = paddle.static.default_main_program(), paddle.static.default_startup_program()
    (weight,) = (parameter.name for parameter in main.all_parameters())
    executor, theirs = paddle.static.Executor(paddle.CPUPlace()), paddle.static.Scope()
    with paddle.static.scope_guard(theirs):
        executor.run(startup)
        start = np.array(theirs.find_var(weight).get_tensor())
        for _ in range(5):
            executor.run(main, feed={"x": array}, fetch_list=[])
    executor.run(startup)
    ours = paddle.static.global_scope()
    ours.find_var(weight).get_tensor().set(start, paddle.CPUPlace())

    names = paddle.static.amp.cast_model_to_fp16(main, use_fp16_guard=False)
    paddle.static.amp.cast_parameters_to_fp16(paddle.CPUPlace(), main, to_fp16_var_names=names)
    compiled = paddle.static.IpuCompiledProgram(main, ipu_strategy=paddle.static.IpuStrategy())
    program = compiled.compile(["x"], [loss.name])
    for _ in range(5):
        executor.run(program, feed={"x": array}, fetch_list=[loss.name])
    compiled._backend.weights_to_host()

    expected = np.array(theirs.find_var(weight).get_tensor())
    result = np.array(ours.find_var(weight).get_tensor()).astype("float32")
    np.testing.assert_allclose(result, expected, atol=4e-3)
    assert np.abs(expected - start).max() > 0.1
