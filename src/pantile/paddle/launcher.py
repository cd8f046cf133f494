"""`python -m paddle.distributed.launch --devices N ipu … script.py`, on one host.

    python -m pantile.paddle -m paddle.distributed.launch --devices 4 ipu \\
        --hosts=localhost --nproc_per_host=2 --ipus_per_replica=1 \\
        --ipu_partition=p --vipu_server=s script.py …

On IPUs it wrapped poprun. Here one process runs the script in place; several get pipes to the
first one, which runs the replicas of all (`distributed_session.py`). Each process finds in its
environment PADDLE_TRAINER_ID, PADDLE_TRAINERS_NUM and POPDIST_REPLICA_INDEX_OFFSET.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing import Pipe

from pantile.errors import ExecutionError, OptionError
from pantile.paddle.peers import COUNT, PIPES, RANK
from pantile.paddle.script import run_script

MODULE = "paddle.distributed.launch"
_LOCAL = frozenset({"localhost", "127.0.0.1"})
_OFFSET = "POPDIST_REPLICA_INDEX_OFFSET"


def launch(arguments: Sequence[str]) -> None:
    """Run the script that the launcher's arguments name."""
    parsed = _parser().parse_args(arguments)
    hosts = parsed.hosts.split(",")
    if len(hosts) > 1 or not _LOCAL.issuperset(hosts):
        raise OptionError(
            f"{MODULE}: hosts={parsed.hosts}; the processes of a run share one machine",
            fix="pass --hosts=localhost",
        )
    count, devices = parsed.nproc_per_host, int(parsed.devices)
    per_replica = parsed.ipus_per_replica
    if min(devices, per_replica, count) < 1 or devices % (per_replica * count):
        raise OptionError(
            f"{MODULE}: devices={devices} cannot be divided into {count} processes with replicas "
            f"of {per_replica}",
            fix="pass a multiple of nproc_per_host · ipus_per_replica",
        )
    shared = {"PANTILE_PADDLE_IPUS": str(devices // count), COUNT: str(count)}
    if count == 1:
        os.environ.update({**shared, RANK: "0", _OFFSET: "0"})
        run_script(parsed.script, parsed.arguments)
        return
    replicas = devices // (per_replica * count)
    each = [{**shared, RANK: str(r), _OFFSET: str(r * replicas)} for r in range(count)]
    _run_together([parsed.script, *parsed.arguments], each)


def _run_together(command: Sequence[str], each: Sequence[dict[str, str]]) -> None:
    """Start a process for each environment; when one fails, the others are ended."""
    pipes = [Pipe() for _ in each[1:]]
    ends = [[near.fileno() for near, _ in pipes], *[[far.fileno()] for _, far in pipes]]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "pantile.paddle", *command],
            env={**os.environ, **own, PIPES: ",".join(map(str, mine))},
            pass_fds=mine,
        )
        for own, mine in zip(each, ends, strict=True)
    ]
    for pair in pipes:  # the processes have copies: only they keep the pipes open
        for end in pair:
            end.close()
    try:
        _wait(running)
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
                process.wait()


def _wait(running: Sequence[subprocess.Popen[bytes]]) -> None:
    left = dict(enumerate(running))
    while left:
        for rank, process in list(left.items()):
            if process.poll() is None:
                continue
            del left[rank]
            if process.returncode:
                raise ExecutionError(
                    f"{MODULE}: process {rank} ended with code {process.returncode}",
                    fix="look at what it said above",
                )
        time.sleep(0.05)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=MODULE, allow_abbrev=False)
    parser.add_argument("--devices", default="1", help="how many IPUs")
    parser.add_argument("kind", choices=["ipu"], help="what kind of device")
    parser.add_argument("--hosts", default="localhost", help="where to run")
    parser.add_argument("--nproc_per_host", type=int, default=1, help="processes of a host")
    parser.add_argument("--ipus_per_replica", type=int, default=1, help="IPUs of a replica")
    parser.add_argument("--ipu_partition", default="", help="ignored: there is no partition")
    parser.add_argument("--vipu_server", default="", help="ignored: there is no server")
    parser.add_argument("script", help="the script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return parser
