"""Print what becomes of each client model.

    python -m tests.clients.report                   all of them
    python -m tests.clients.report timm plain        some families
    python -m tests.clients.report -k bert           those with "bert" in their name
    python -m tests.clients.report --engine native   on the native engine, each in a process of its
                                                     own; see tests/clients/native.py

`PANTILE_CACHE_DIR=folder` keeps what was compiled for the next time, and `PANTILE_TUNE=0` compiles
each program once, without timing it. The exit code is 1 if any model is wrong, or refused without
being expected to be.
"""

from __future__ import annotations

import os

os.environ.setdefault("PANTILE_ENGINE", "reference")  # whose bits are eager's
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import argparse
import importlib
import sys
from collections import Counter

import torch
from tests.clients.client import Client, complaint, judge
from tests.clients.native import PROMISE, judge_apart, native_complaint
from tests.clients.torchvision_ops import declare_missing_ops

FAMILIES = ("plain", "timm", "torchvision", "transformers")


def clients_of(family: str) -> tuple[Client, ...]:
    """The clients of one family; none if its package is not installed."""
    try:
        module = importlib.import_module(f"tests.clients.{family}_models")
    except ModuleNotFoundError as error:
        print(f"{family}: not installed ({error})")
        return ()
    found: tuple[Client, ...] = module.CLIENTS
    return found


def main(arguments: list[str] | None = None) -> int:
    """Judge the chosen clients and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients.report")
    parser.add_argument("families", nargs="*", default=FAMILIES, metavar="family")
    parser.add_argument("-k", default="", help="only names that contain this")
    parser.add_argument("--engine", choices=("reference", "native"), default="reference")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    declare_missing_ops()
    report = _report_native if chosen.engine == "native" else _report_reference
    outcomes, complaints = report(
        [
            (family, client)
            for family in chosen.families
            for client in clients_of(family)
            if chosen.k in client.name
        ]
    )
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()))
    for text in complaints:
        print(f"unexpected: {text}")
    return 1 if complaints else 0


Report = tuple[Counter[str], list[str]]


def _report_reference(clients: list[tuple[str, Client]]) -> Report:
    outcomes: Counter[str] = Counter()
    complaints = []
    print(f"{'family':13} {'model':30} {'outcome':8} {'eager':>8} {'pantile':>8}")
    for family, client in clients:
        verdict = judge(client)
        outcomes[verdict.outcome] += 1
        times = f"{verdict.eager_seconds:7.2f}s {verdict.pantile_seconds:7.2f}s"
        detail = verdict.detail.partition("\n")[0]
        print(f"{family:13} {client.name:30} {verdict.outcome:8} {times} {detail}", flush=True)
        complaints += [text] if (text := complaint(client, verdict)) else []
    return outcomes, complaints


def _report_native(clients: list[tuple[str, Client]]) -> Report:
    outcomes: Counter[str] = Counter()
    complaints = []
    print(
        f"{'family':13} {'model':30} {'outcome':9} {'differs':>8} {'share':>7} {'typical':>7} "
        f"{'whole':>6} {'compile':>8} code by"
    )
    for family, client in clients:
        verdict = judge_apart(family, client.name)
        outcomes[verdict.outcome] += 1
        outcomes[f"by {verdict.lowering}"] += 1
        outcomes["within twice eager's error"] += 0 < verdict.share <= PROMISE
        outcomes["within twice eager's as a whole"] += 0 < verdict.whole <= PROMISE
        outcomes["within twice the farthest run"] += 0 < verdict.typical <= PROMISE
        numbers = f"{verdict.difference:8.1e} {verdict.share:7.2f} {verdict.typical:7.2f} "
        numbers += f"{verdict.whole:6.2f} {verdict.compile_seconds:7.1f}s {verdict.lowering:8}"
        detail = verdict.detail.partition("\n")[0]
        if verdict.typical > PROMISE:
            detail += f"; farthest {verdict.worst}"
        print(f"{family:13} {client.name:30} {verdict.outcome:9} {numbers} {detail}", flush=True)
        complaints += [text] if (text := native_complaint(client, verdict)) else []
    return outcomes, complaints


if __name__ == "__main__":
    sys.exit(main())
