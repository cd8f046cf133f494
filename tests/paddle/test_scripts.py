"""Unchanged scripts: the documented demo, fluid names, runners, custom operators."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
import torch
from tests.paddle.networks import Built, train_with_paddle

import pantile.paddle
from pantile.errors import CaptureError
from pantile.paddle import api
from pantile.paddle.custom_sources import without_popart

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "paddle"


def _run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PANTILE_PADDLE_INSTALL"}
    environment["PANTILE_ENGINE"] = "native"  # 2600 updates take the other one too long
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=folder,
        env=environment,
    )


def test_the_documented_demo_trains_saves_and_infers(tmp_path: Path) -> None:
    trained = _run(
        "-m",
        "pantile.paddle",
        str(EXAMPLES / "mnist_train.py"),
        "--steps",
        "41",
        folder=tmp_path,
    )

    assert trained.returncode == 0, trained.stderr
    lines = trained.stdout.splitlines()
    compiling = [f"Graph compilation: {percent}/100" for percent in range(20, 101, 20)]
    assert lines[:2] == [
        "start training",
        "start compiling model for ipu, it will need some minutes",
    ]
    assert lines[2:8] == [*compiling, "finish model compiling!"]
    losses = [float(loss) for loss in re.findall(r"step: \d+, loss: (\S+)", trained.stdout)]
    assert len(losses) == 2 and losses[1] < losses[0] / 2
    assert "finish training!" in lines and "start verifying" in lines
    (score,) = re.findall(r"top1 score: (\S+)", trained.stdout)
    assert float(score) > 0.5
    assert {p.name for p in (tmp_path / "model").iterdir()} == {"mnist.pdmodel", "mnist.pdiparams"}

    inferred = _run(
        "-m", "pantile.cli.main", "run", str(EXAMPLES / "mnist_infer.py"), folder=tmp_path
    )
    assert inferred.returncode == 0, inferred.stderr
    assert re.search(r"Inference result of test image 0 \(a 7\) is: +\d", inferred.stdout)


def test_a_missing_script_is_an_error_with_a_status(tmp_path: Path) -> None:
    done = _run("-m", "pantile.paddle", "nowhere.py", folder=tmp_path)

    assert done.returncode == 1
    assert "nowhere.py is not a file" in done.stderr


def test_the_launcher_runs_a_script_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys, paddle\npaddle.set_device('ipu')\nprint(paddle.get_device(), sys.argv[1:])\n"
    )
    launcher = ("-m", "pantile.paddle", "-m", "paddle.distributed.launch", "--devices", "4", "ipu")
    local = ("--hosts=localhost", "--nproc_per_host=1", "--ipus_per_replica=2")

    done = _run(
        *launcher, *local, "--ipu_partition=p", "script.py", "--epochs", "2", folder=tmp_path
    )
    refused = _run(*launcher, "--hosts=a,b", "script.py", folder=tmp_path)

    assert done.stdout.splitlines()[-1] == "ipus:{0-3} ['--epochs', '2']", done.stderr
    assert refused.returncode == 1
    assert "hosts=a,b" in refused.stderr and "--hosts=localhost" in refused.stderr


def test_a_module_runs_with_the_api_in_place(tmp_path: Path) -> None:
    (tmp_path / "test_place.py").write_text(
        "import unittest\n"
        "from paddle import IPUPlace\n"
        "from paddle.fluid.dygraph.dygraph_to_static.program_translator import ProgramCache\n"
        "from paddle.fluid.executor import global_scope\n"
        "class Place(unittest.TestCase):\n"
        "    def test_place(self):\n"
        "        self.assertEqual(str(IPUPlace()), 'Place(ipu:0)')\n"
    )

    done = _run("-m", "pantile.paddle", "-m", "unittest", "-v", "test_place", folder=tmp_path)
    missing = _run("-m", "pantile.paddle", "-m", "no.such.module", folder=tmp_path)

    assert done.returncode == 0 and "test_place.Place.test_place) ... ok" in done.stderr
    assert missing.returncode == 1 and "there is no module no.such.module" in missing.stderr


def test_importing_the_package_installs_and_the_environment_can_forbid_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, sys\n"
        "os.environ['PANTILE_PADDLE_INSTALL'] = sys.argv[1]\n"
        "import pantile.paddle\n"
        "print('paddle' in sys.modules, pantile.paddle.is_installed())\n"
    )

    allowed = _run("script.py", "1", folder=tmp_path)
    forbidden = _run("script.py", "0", folder=tmp_path)

    assert allowed.stdout.strip() == "True True", allowed.stderr
    assert forbidden.stdout.strip() == "False False", forbidden.stderr


def test_fluid_names_build_the_programs_they_built() -> None:
    with pantile.paddle.installed():
        import paddle.fluid as fluid

        main, startup = fluid.Program(), fluid.Program()
        main.random_seed = startup.random_seed = 5
        with fluid.program_guard(main, startup):
            x = fluid.layers.data("x", [1, 8, 8])
            y = fluid.data("y", [-1, 1], "int64")
            h = fluid.nets.simple_img_conv_pool(x, 3, 3, 2, 2, act="relu")
            h = fluid.layers.dropout(fluid.layers.batch_norm(h), 0.0)
            h = fluid.layers.elementwise_add(h, fluid.layers.reduce_mean(h, dim=[2, 3]), axis=0)
            share = fluid.layers.fc(h, 10, act="softmax")
            loss = fluid.layers.mean(fluid.layers.cross_entropy(share, y))
            fluid.optimizer.SGDOptimizer(learning_rate=0.1).minimize(loss)
        with pytest.raises(AttributeError, match=r"fluid.layers.no_such_layer"):
            _ = fluid.layers.no_such_layer
    kinds = {op.type for op in main.global_block().ops}
    assert {"cross_entropy2", "batch_norm", "pool2d", "sgd"} <= kinds
    built = Built(main, startup, loss, share)
    rng = np.random.default_rng(1)
    feeds = [
        {
            "x": rng.standard_normal((4, 1, 8, 8)).astype("float32"),
            "y": rng.integers(0, 10, (4, 1)),
        }
        for _ in range(4)
    ]
    theirs, ours = built.start(), built.start()
    expected = train_with_paddle(built, theirs, feeds)
    strategy = api.IpuStrategy()
    strategy.set_graph_config(micro_batch_size=4)

    model = api.compile(main, ["x", "y"], [loss], strategy=strategy, scope=ours)

    losses = [model.run(feed)[0].item() for feed in feeds]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_fluid_layers_keep_the_shapes_they_had() -> None:
    with pantile.paddle.installed():
        import paddle.fluid as fluid

        layers = fluid.layers
        x = fluid.data("x", [2, 3, 4])
        rows = fluid.data("rows", [2, 3, 1], "int64")
        with fluid.unique_name.guard(fluid.unique_name.UniqueNameGenerator()):
            fetched = {
                (2, 6, 4): layers.expand(x, [1, 2, 1]),
                (6, 4): layers.flatten(x, axis=2),
                (2, 3, 5): layers.one_hot(rows, 5),
                (2, 3, 1, 5): fluid.one_hot(rows, 5),
                (2, 3, 8): layers.embedding(rows, [6, 8], padding_idx=-1),
                (2, 3, 1, 8): fluid.embedding(rows, [6, 8]),
                (2, 4): layers.reduce_prod(x, dim=1),
                (3, 4): layers.cumsum(x, axis=1, exclusive=True, reverse=True)[0],
                (2, 3): layers.squeeze(layers.cast(rows, "float32"), [-1]),
                (2, 3, 4): layers.less_equal(layers.pow(x, 2.0), x),
            }
    names = [variable.name for variable in fetched.values()]
    main, strategy = paddle.static.default_main_program(), api.IpuStrategy()
    strategy.set_graph_config(is_training=False)
    executor = paddle.static.Executor(paddle.CPUPlace())
    executor.run(paddle.static.default_startup_program())
    rng = np.random.default_rng(3)
    feed = {
        "x": rng.uniform(0, 2, (2, 3, 4)).astype("float32"),
        "rows": rng.integers(0, 5, (2, 3, 1)),
    }
    expected = executor.run(main, feed=feed, fetch_list=names)

    results = api.compile(main, ["x", "rows"], names, strategy=strategy).run(feed)

    assert [result.shape for result in results] == list(fetched)
    for result, want in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-6, atol=1e-6)


def test_fluid_arithmetic_aligns_y_at_an_axis_and_takes_other_types() -> None:
    with pantile.paddle.installed():
        import paddle.fluid as fluid

        x = fluid.data("x", [2, 3, 4])
        y = fluid.data("y", [3])
        half = fluid.layers.cast(x, "float16")
        names = [
            fluid.layers.elementwise_sub(x, y, axis=1, act="relu").name,
            fluid.layers.elementwise_mul(half, fluid.layers.fill_constant([1], "float32", 8)).name,
        ]
    strategy = api.IpuStrategy()
    strategy.set_graph_config(is_training=False)
    rng = np.random.default_rng(4)
    feed = {"x": rng.integers(-4, 5, (2, 3, 4)) / 4.0, "y": rng.integers(-4, 5, (3,)) / 4.0}
    feed = {name: array.astype("float32") for name, array in feed.items()}

    program = paddle.static.default_main_program()
    aligned, scaled = api.compile(program, ["x", "y"], names, strategy=strategy).run(feed)

    np.testing.assert_array_equal(aligned, np.maximum(feed["x"] - feed["y"][:, None], 0))
    np.testing.assert_array_equal(scaled, 8 * feed["x"])


def test_fluid_layers_of_operators_that_lost_their_functions() -> None:
    with pantile.paddle.installed():
        import paddle.fluid as fluid

        layers = fluid.layers
        x, y = fluid.data("x", [2, 3, 4, 4]), fluid.data("y", [2, 3, 4, 4])
        scale = layers.fill_constant([3], "float32", 0.5)
        made = [
            layers.affine_channel(x, scale, scale),
            layers.brelu(x, -0.5, 0.25),
            layers.huber_loss(x, y, 0.7),
            layers.mul(x, layers.reshape(y, [48, 2])),
            layers.pad(x, [0, 0, 1, 0, 0, 2, 0, 0], 7.0),
            layers.sigmoid_cross_entropy_with_logits(x, layers.abs(y), normalize=True),
            *layers.argsort(x, axis=1, descending=True),
            layers.softshrink(x),
            layers.hard_shrink(x, 0.1),
            layers.thresholded_relu(x),
            layers.l2_normalize(x, 1),
            layers.reverse(x, 2),
            layers.size(x),
        ]
        left, right = (
            layers.reshape(layers.reduce_mean(value, dim=[1, 2, 3]), [2, 1]) for value in (x, y)
        )
        made.append(layers.rank_loss(layers.sigmoid(left), left, right))
    names = [variable.name for variable in made]
    rng = np.random.default_rng(5)
    feed = {name: rng.standard_normal((2, 3, 4, 4)).astype("float32") for name in "xy"}
    main, strategy = paddle.static.default_main_program(), api.IpuStrategy()
    strategy.set_graph_config(is_training=False)
    executor = paddle.static.Executor(paddle.CPUPlace())
    expected = executor.run(main, feed=feed, fetch_list=names)

    results = api.compile(main, ["x", "y"], names, strategy=strategy).run(feed)

    for name, result, want in zip(names, results, expected, strict=True):
        np.testing.assert_allclose(
            result, want.reshape(result.shape), rtol=2e-6, atol=1e-6, err_msg=name
        )


def test_a_registered_function_computes_an_operator_nobody_knows() -> None:
    x = paddle.static.data("x", [2, 3])
    out = paddle.lgamma(x)
    program, strategy = paddle.static.default_main_program(), api.IpuStrategy()
    strategy.set_graph_config(is_training=False)
    array = np.float32([[1, 2, 3], [4, 5, 6]])

    with pytest.raises(CaptureError, match="lgamma"):
        api.compile(program, ["x"], [out], strategy=strategy)
    api.register_operator("lgamma", lambda tensor: torch.lgamma(tensor))
    try:
        (result,) = api.compile(program, ["x"], [out], strategy=strategy).run({"x": array})
    finally:
        api.unregister_operator("lgamma")

    # lgamma(n) = log((n - 1)!)
    expected = np.log([[1, 1, 2], [6, 24, 120]])
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


def test_sources_for_popart_are_left_out_of_a_custom_operator(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "op.cc", tmp_path / "popart_op.cc"
    ours.write_text('#include "paddle/extension.h"\n// not <popart/op.hpp>\n')
    theirs.write_text("#include <vector>\n#include <popart/op.hpp>\n")

    assert without_popart([str(ours), str(theirs)]) == [str(ours)]
