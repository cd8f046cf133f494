"""`paddle.distributed.launch … ipu`: one process, several, and what cannot be launched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
from tests.paddle.networks import Built, train_with_paddle, values_in

from pantile.errors import OptionError
from pantile.paddle.launcher import MODULE, launch

_SCRIPT = """
import os, sys
import numpy as np, paddle

paddle.enable_static()
paddle.seed(3)
rank = int(os.environ["PADDLE_TRAINER_ID"])
main, startup = paddle.static.Program(), paddle.static.Program()
main.random_seed = startup.random_seed = 7
with paddle.static.program_guard(main, startup):
    x = paddle.static.data("x", [2, 4])
    weight = paddle.create_parameter([4, 3], "float32", name="weight")
    loss = paddle.mean(paddle.tanh(paddle.matmul(x, weight)))
    paddle.optimizer.Adam(0.05).minimize(loss)
executor = paddle.static.Executor(paddle.IPUPlace())
executor.run(startup)
strategy = paddle.static.IpuStrategy()
strategy.set_graph_config(num_ipus=2, is_training=True)
strategy.set_pipelining_config(
    batches_per_step=2, enable_gradient_accumulation=True, accumulation_factor=2
)
strategy.set_options({
    "enable_distribution": True,
    "enable_replicated_graphs": True,
    "replicated_graph_count": 2,
    "enable_distributed_replicated_graphs": True,
    "global_replica_offset": int(os.environ["POPDIST_REPLICA_INDEX_OFFSET"]),
    "global_replication_factor": 4,
})
compiled = paddle.static.IpuCompiledProgram(main, ipu_strategy=strategy)
program = compiled.compile(["x"], [loss.name])
data = np.load("data.npy")[:, :, :, 2 * rank : 2 * rank + 2]  # run, bps, G, R, rows, columns
losses = []
for run in range(len(data)):
    fed = {"x": data[run].reshape(16, 4)}
    losses.append(executor.run(program, feed=fed, fetch_list=[loss])[0])
if rank or len(sys.argv) > 1:  # any process may ask, and none must wait for another to ask
    compiled._backend.weights_to_host()
held = np.array(paddle.static.global_scope().find_var("weight").get_tensor())
np.savez(f"rank{rank}.npz", losses=np.array(losses), weight=held)
"""


def _launched(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PANTILE_PADDLE_INSTALL"}
    return subprocess.run(
        [sys.executable, "-m", "pantile.paddle", "-m", MODULE, *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=folder,
        env={**environment, "PANTILE_ENGINE": "reference"},
    )


def _by_paddle(data: np.ndarray) -> tuple[list[float], np.ndarray]:
    """A step of all micro-batches of an update is a step of one big batch."""
    main, startup = paddle.static.Program(), paddle.static.Program()
    main.random_seed = startup.random_seed = 7
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [16, 4])
        weight = paddle.create_parameter([4, 3], "float32", name="weight")
        loss = paddle.mean(paddle.tanh(paddle.matmul(x, weight)))
        paddle.optimizer.Adam(0.05).minimize(loss)
    built = Built(main, startup, loss, None)
    scope = built.start()
    feeds = [{"x": batch} for batch in data.reshape(-1, 16, 4)]
    losses = train_with_paddle(built, scope, feeds)
    return losses, values_in(scope, ["weight"])["weight"]


def test_two_processes_train_one_program_as_one_would(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_SCRIPT)
    rng = np.random.default_rng(5)
    data = rng.standard_normal((3, 2, 2, 4, 2, 4)).astype("float32")
    np.save(tmp_path / "data.npy", data)
    expected, weight = _by_paddle(data)

    command = "--devices=4 ipu --hosts=localhost --nproc_per_host=2 --ipus_per_replica=1"
    partition = ["--ipu_partition=pod", "--vipu_server=10.0.0.1"]
    done = _launched(*command.split(), *partition, "script.py", folder=tmp_path)

    assert done.returncode == 0, done.stderr
    first, second = (np.load(tmp_path / f"rank{rank}.npz") for rank in (0, 1))
    assert first["losses"].shape == (3, 2, 2, 2)  # runs, and what each fetches: R, G, bps
    # In the order they were run: bps, G, R. The loss of an update is the mean of its parts.
    parts = [share["losses"].reshape(6, 2, 2) for share in (first, second)]
    np.testing.assert_allclose(
        np.concatenate(parts, axis=2).mean((1, 2)), expected, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(second["weight"], weight, rtol=1e-5, atol=1e-6)
    assert np.abs(first["weight"] - weight).max() > 0.01  # it did not ask, and keeps what it had


_FAILING = """
import os, signal
if os.environ["PADDLE_TRAINER_ID"] == "1":
    raise ZeroDivisionError("on purpose")
signal.pause()  # until the launcher ends it
"""


def test_a_process_that_fails_ends_the_others(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_FAILING)

    done = _launched("--devices=4", "ipu", "--nproc_per_host=2", "script.py", folder=tmp_path)

    assert done.returncode == 1
    assert "ZeroDivisionError: on purpose" in done.stderr
    assert "process 1 ended with code 1" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("--devices=4 ipu --hosts=first,second script.py", "share one machine"),
        ("--devices=4 ipu --nproc_per_host=3 script.py", "cannot be divided"),
        ("--devices=2 ipu --ipus_per_replica=4 script.py", "cannot be divided"),
    ],
)
def test_what_cannot_be_launched_is_refused(arguments: str, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        launch(arguments.split())
