"""Prepare the engines of a task and compare their results with eager's, before any timing.

A peer that is missing, does not take the workload or fails becomes a record that says so; the
others go on. Engines that draw dropout masks are compared on the same workload with dropout 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.child import Task
from benchmarks.measure import Plan
from benchmarks.peers.eager import Eager
from benchmarks.peers.peer import Engine, Peer, Purpose, Settings
from benchmarks.workloads import Workload

COMPARED_STEPS = 4
"""Losses of four steps: before any update, and after one, two and three."""
TOLERANCE = 1e-4


@dataclass
class Prepared:
    """An engine that is ready, and what is known about it so far."""

    peer: Peer
    engine: Engine
    record: dict[str, Any]


def plan_of(task: Task) -> Plan:
    """How long the task measures."""
    plan = Plan.quick() if task.quick else Plan()
    return plan if task.seconds is None else Plan(task.seconds, plan.round_seconds, plan.rounds)


def peers_of(task: Task) -> list[Peer]:
    """The peers a task asks for."""
    return peers.load(task.families, Settings(task.engine, task.paddle_python))


def first_results(engine: Engine, count: int) -> np.ndarray:
    """The results of the first steps, each step's numbers one after the other."""
    found: list[np.ndarray] = []
    while len(found) * engine.steps < count:
        result = engine.run(1)
        engine.wait(result)
        found.append(engine.read(result))
    return np.concatenate(found)


def _training_check(workload: Workload) -> Callable[[Engine], dict[str, Any]]:
    want = first_results(Eager("eager").training(workload), COMPARED_STEPS)

    def check(engine: Engine) -> dict[str, Any]:
        got = first_results(engine, COMPARED_STEPS)[:COMPARED_STEPS]
        apart = np.abs(got - want) / np.abs(want)
        return {
            "losses": got.tolist(),
            "eager_losses": want.tolist(),
            "difference_at_start": float(apart[0]),
            "difference_after_1_step": float(apart[1]),
            "difference_after_3_steps": float(apart[3]),
            "equal": bool(np.all(apart <= TOLERANCE)),
        }

    return check


def _inference_check(workload: Workload) -> Callable[[Engine], dict[str, Any]]:
    want = first_results(Eager("eager").inference(workload), 1)

    def check(engine: Engine) -> dict[str, Any]:
        got = first_results(engine, 1)
        # Eight iterations on the same rows give the same rows eight times.
        apart = np.abs(got.reshape(engine.steps, -1) - want).max() / np.abs(want).max()
        return {"difference": float(apart), "equal": bool(apart <= TOLERANCE)}

    return check


def prepare(
    task: Task, workload: Workload, purpose: Purpose, tell: Callable[[str], None]
) -> tuple[list[Prepared], list[dict[str, Any]]]:
    """The engines that are ready, and records of the peers that are not."""
    same = workload.without_dropout()
    check = _training_check(same) if purpose == "training" else _inference_check(same)
    ready: list[Prepared] = []
    refused: list[dict[str, Any]] = []
    for peer in peers_of(task):
        if not peer.takes(workload, purpose):
            continue
        tell(peer.name)
        record: dict[str, Any] = {"peer": peer.name, "family": peer.family}
        reason = peer.available()
        if reason is not None:
            refused.append({**record, "skipped": reason})
            continue
        try:
            ready.append(_checked(peer, workload, purpose, check))
        except Exception as error:
            refused.append({**record, "error": f"{type(error).__name__}: {error}"[:2000]})
    return ready, refused


def _checked(
    peer: Peer, workload: Workload, purpose: Purpose, check: Callable[[Engine], dict[str, Any]]
) -> Prepared:
    begin = time.perf_counter()
    build = peer.training if purpose == "training" else peer.inference
    engine = build(workload)
    if workload.dropout and purpose == "training":
        engine.wait(engine.run(1))
        seconds = time.perf_counter() - begin
        twin = build(workload.without_dropout())
        checked = check(twin)
        twin.close()
    else:
        checked = check(engine)
        seconds = time.perf_counter() - begin
    record = {
        "peer": peer.name,
        "family": peer.family,
        "seconds_to_prepare": seconds,
        "notes": list(engine.notes),
        "check": checked,
    }
    return Prepared(peer, engine, record)
