"""`python -m paddle.distributed.launch --devices N ipu … script.py`, in one process.

    python -m pantile.paddle -m paddle.distributed.launch --devices 4 ipu \\
        --hosts=localhost --nproc_per_host=1 --ipus_per_replica=1 \\
        --ipu_partition=p --vipu_server=s script.py …

On IPUs it wrapped poprun. Here the replicas of a program run side by side in one process, so one
host and one process are accepted, and the script runs with N software IPUs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from pantile.errors import OptionError
from pantile.paddle.script import run_script

MODULE = "paddle.distributed.launch"
_LOCAL = frozenset({"localhost", "127.0.0.1"})


def launch(arguments: Sequence[str]) -> None:
    """Run the script that the launcher's arguments name."""
    parsed = _parser().parse_args(arguments)
    hosts = parsed.hosts.split(",")
    if len(hosts) > 1 or not _LOCAL.issuperset(hosts) or parsed.nproc_per_host > 1:
        raise OptionError(
            f"{MODULE}: hosts={parsed.hosts}, nproc_per_host={parsed.nproc_per_host}; the replicas "
            "of a Paddle program run in one process",
            fix="pass --hosts=localhost --nproc_per_host=1; replicated_graph_count says how many",
        )
    devices, per_replica = int(parsed.devices), parsed.ipus_per_replica
    if devices < 1 or per_replica < 1 or devices % per_replica:
        raise OptionError(
            f"{MODULE}: devices={devices} cannot be divided into replicas of {per_replica}",
            fix="pass a multiple of ipus_per_replica",
        )
    os.environ["PANTILE_PADDLE_IPUS"] = str(devices)
    run_script(parsed.script, parsed.arguments)


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
