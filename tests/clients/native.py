"""Whether the native engine trains a client model as eager PyTorch does.

    step 1    eager PyTorch and the reference engine: the same bits
    step 2    eager PyTorch, the native engine, and eager PyTorch in float64

The second step is compared: outputs, parameters, buffers, optimizer state. Machine code adds in
another order, so bits differ; a tensor is `close` if the greatest difference is at most 1e-5 of its
greatest value. Where that fails, float64 decides: the native engine may be at most four times as
far from it as eager PyTorch in float32 is (`rounding`). A second run from the start must have the
bits of the first.

What we promise is told apart, as `share`: how many times eager's own distance from float64 ours is,
of the tensor where that is most; two is the promise.

    share = ours / (eager's + 5e-7), each a part of the tensor's greatest value

`whole` is the same of the model: the greatest difference from float64 of any number in its
parameters, ours divided by eager's.

Eager's one run can be close by luck, so `typical` is the same with the largest distance of five,
whose weights differ by a bit; of forty, if those five leave us beyond the promise: what a third of
all runs see, five miss for one model in eight. Two kinds of luck are common:

    a sign      resnext has a relu of 5e-9 where its values go up to 2: three of the five runs see
                the sign that float64 sees, two the other, and the gradient of a bias jumps by 30 %
    a nothing   what is zero on paper (the gradient of the bias of attention's keys, or of a
                convolution before a norm) consists of rounding

The squares that Adam keeps are compared as what it makes of them, their roots: three times as far
would else be nine times. `worst` names the tensor where `typical` is most.

    python -m tests.clients.native plain transformer         one model, its verdict as JSON
"""

from __future__ import annotations

import copy
import json
import logging
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from tests.clients.chance import no_chance, without_dropout
from tests.clients.client import (
    Batch,
    Client,
    Optimizer,
    Snapshot,
    loss_of,
    optimizer_of,
    same_bits,
    snapshot,
)
from torch import nn

import poptorch

CLOSE = 1e-5
SHARE, SLACK, PROMISE = 4.0, 1e-6, 2.0
RUNS, MOST_RUNS = 5, 40
"""How far from float64: this many times eager's own distance, and a little; eager is also run with
its weights moved by their last bit so many times, since one run can be close by luck."""

_TINY = 1e-30

Outcome = Literal["close", "rounding", "reference", "refused", "wrong", "crashed"]


@dataclass(frozen=True)
class NativeVerdict:
    """What became of one client.

    `close` and `rounding` are good: see the top of the file. `reference`: it was not compiled, and
    the detail is the message. `refused`: Pantile does not take the model on any engine.
    """

    outcome: Outcome
    difference: float = 0.0
    detail: str = ""
    compile_seconds: float = 0.0
    seconds: float = 0.0
    lowering: str = "-"
    """Who wrote the code: our kernels, or Inductor."""
    share: float = 0.0
    typical: float = 0.0
    """How many times eager's own error ours is; see the top of the file."""
    worst: str = ""
    whole: float = 0.0


def judge_native(client: Client) -> NativeVerdict:
    """Take two steps in all three ways, without chance, and compare the second."""
    torch.manual_seed(0)
    batches = [client.batch() for _ in range(2)]  # by chance: equal pixels would err alike
    with no_chance():
        model = without_dropout(client.model().train())
        halfway = _Halfway.of(copy.deepcopy(model), client, batches[0])
        try:
            native = _train_natively(copy.deepcopy(model), client, batches)
            again = _train_natively(model, client, batches)
        except poptorch.Error as error:
            return NativeVerdict("refused", detail=f"{type(error).__name__}: {error}")
        if not native.compile_seconds:
            detail = "; ".join(native.messages) or "no native program was used"
            return NativeVerdict("reference", detail=detail)
        if failed := [m for m in native.messages if "our kernels cannot be used" in m]:
            return NativeVerdict("wrong", detail=failed[0])
        if changed := [
            n for n in native.results if not same_bits(native.results[n], again.results[n])
        ]:
            return NativeVerdict("wrong", detail=f"another run has other bits in {changed[0]}")
        accuracy = _Accuracy.of(native.results, halfway, batches[1])
        outcome, difference, detail = _compare(native.results, accuracy)
    times = (native.compile_seconds, native.seconds)
    typical, worst = accuracy.share(MOST_RUNS)
    shares = (accuracy.share(1)[0], typical, worst, accuracy.whole)
    return NativeVerdict(outcome, difference, detail, *times, native.lowering, *shares)


def judge_apart(family: str, name: str, *, timeout: float = 900.0) -> NativeVerdict:
    """The verdict of a process of its own: a crash in machine code ends only that."""
    begin = time.perf_counter()
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.clients.native", family, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return NativeVerdict("crashed", detail=f"not done after {timeout:.0f} s")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return NativeVerdict("crashed", detail=f"exit {done.returncode}: {' | '.join(lines[-3:])}")
    found = json.loads(done.stdout.splitlines()[-1])
    return NativeVerdict(**found | {"seconds": time.perf_counter() - begin})


def native_complaint(client: Client, verdict: NativeVerdict) -> str:
    """Empty if the verdict is the one the client should get."""
    if client.refusal:
        expected = verdict.outcome == "refused" and client.refusal in verdict.detail
    else:
        expected = verdict.outcome in ("close", "rounding")
    return "" if expected else f"{client.name} is {verdict.outcome}: {verdict.detail}"


@dataclass(frozen=True)
class _Native:
    results: Snapshot
    messages: tuple[str, ...]
    compile_seconds: float
    seconds: float
    lowering: str


def _train_natively(model: nn.Module, client: Client, batches: list[Batch]) -> _Native:
    optimizer = optimizer_of(model, client.optimizer)
    options = poptorch.Options().showCompilationProgressBar(False).engine("native")
    executor = poptorch.trainingModel(model, options, optimizer)
    begin = time.perf_counter()
    with _Listening() as messages:
        for batch in batches:
            result = executor(**batch)
    compiled = sum(entry.header["seconds"] for entry in executor._executable_entries())
    lowering = ", ".join(sorted({facts["lowering"] for facts in executor.nativeDecisions()}))
    seconds = time.perf_counter() - begin
    results = snapshot(model, optimizer, result)
    return _Native(results, tuple(messages), compiled, seconds, lowering)


class _Listening(logging.Handler):
    """The warnings of Pantile, while in the `with`."""

    def __enter__(self) -> list[str]:
        self.found: list[str] = []
        logging.getLogger("poptorch::python").addHandler(self)
        return self.found

    def __exit__(self, *_: object) -> None:
        logging.getLogger("poptorch::python").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self.found.append(record.getMessage())


@dataclass(frozen=True)
class _Halfway:
    """A model that eager PyTorch has trained for one step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    kind: Optimizer

    @staticmethod
    def of(model: nn.Module, client: Client, batch: Batch) -> _Halfway:
        optimizer = optimizer_of(model, client.optimizer)
        _step(model, optimizer, batch)
        return _Halfway(model, optimizer, client.optimizer)

    def go_on(self, batch: Batch, dtype: torch.dtype = torch.float32, nudge: int = 0) -> Snapshot:
        """The second step of a copy; with a nudge, its weights are moved by their last bit."""
        model = copy.deepcopy(self.model).to(dtype)
        if nudge:
            generator = torch.Generator().manual_seed(nudge)
            for parameter in model.parameters():
                signs = torch.empty_like(parameter).uniform_(-1, 1, generator=generator).sign()
                parameter.data *= 1 + signs * 2.0**-23
        optimizer = optimizer_of(model, self.kind)
        optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}
        return _step(model, optimizer, given)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> Snapshot:
    result = model(**batch)
    optimizer.zero_grad()
    loss_of(result).backward()
    optimizer.step()
    return snapshot(model, optimizer, result)


@dataclass(frozen=True)
class _Accuracy:
    """How far from float64 each tensor is after the second step."""

    eager: Snapshot
    ours: dict[str, float]
    theirs: dict[str, list[float]]
    """Of eager's own run, and of those with nudged weights."""
    whole: float
    """Of the model: the greatest difference of any parameter, ours divided by eager's."""

    @staticmethod
    def of(native: Snapshot, halfway: _Halfway, batch: Batch) -> _Accuracy:
        wide = halfway.go_on(batch, torch.float64)
        runs = [halfway.go_on(batch, nudge=nudge) for nudge in range(RUNS)]
        names = [n for n in runs[0] if n in native and n != "random state"]
        ours = {name: _apart(name, native, wide) for name in names}
        theirs = {name: [_apart(name, run, wide) for run in runs] for name in names}
        whole = _furthest(native, wide) / max(_furthest(runs[0], wide), _TINY)
        found = _Accuracy(runs[0], ours, theirs, whole)
        for nudge in range(RUNS, MOST_RUNS):
            if found.share(MOST_RUNS)[0] <= PROMISE:
                break
            run = halfway.go_on(batch, nudge=nudge)
            for name in names:
                theirs[name].append(_apart(name, run, wide))
        return found

    def share(self, runs: int) -> tuple[float, str]:
        """The most that our distance is of eager's, which is the largest of so many runs; where."""
        shares = (
            (distance / (max(self.theirs[name][:runs]) + SLACK / PROMISE), name)
            for name, distance in self.ours.items()
            if distance > 0
        )
        return max(shares, default=(0.0, ""))


def _compare(native: Snapshot, accuracy: _Accuracy) -> tuple[Outcome, float, str]:
    eager = accuracy.eager
    if native.keys() != eager.keys():
        return "wrong", 0.0, f"different names: {sorted(native.keys() ^ eager.keys())[:5]}"
    names = [name for name in eager if name != "random state"]
    distances = {name: _apart(name, native, eager) for name in names}
    worst = max(names, key=lambda name: distances[name])
    far = [name for name in names if not distances[name] <= CLOSE]
    if not far:
        return "close", distances[worst], ""
    wrong = []
    for name in far:
        ours, theirs = accuracy.ours[name], max(accuracy.theirs[name])
        if not ours <= SHARE * theirs + SLACK:
            wrong.append(f"{name}: {ours:.1e} from float64, eager {theirs:.1e}")
    if wrong:
        return "wrong", distances[worst], f"{len(wrong)} of {len(names)}: {'; '.join(wrong[:3])}"
    return "rounding", distances[worst], f"{len(far)} of {len(names)}, most {worst}"


def _apart(name: str, a: Snapshot, b: Snapshot) -> float:
    one, other = a[name], b[name]
    if name.startswith("optimizer exp_avg_sq "):
        return _distance(one.sqrt(), other.sqrt())
    return _distance(one, other)


def _furthest(a: Snapshot, b: Snapshot) -> float:
    """The greatest difference of any parameter."""
    names = [name for name in b if name.startswith("parameter ") and b[name].numel()]
    return max((float((a[n].double() - b[n].double()).abs().max()) for n in names), default=0.0)


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The greatest difference, as a part of the greatest value of `b`."""
    if a.shape != b.shape:
        return float("inf")
    if a.numel() == 0:
        return 0.0
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=float("inf")).max()
    scale = b.abs().nan_to_num(posinf=0.0).max()
    return float(difference / scale) if scale > 0 else float(difference)


def main(arguments: list[str]) -> None:
    """Judge one client and print the verdict."""
    from tests.clients.report import clients_of
    from tests.clients.torchvision_ops import declare_missing_ops

    torch.set_num_threads(1)
    declare_missing_ops()
    family, name = arguments
    [client] = [client for client in clients_of(family) if client.name == name]
    print(json.dumps(asdict(judge_native(client))))


if __name__ == "__main__":
    main(sys.argv[1:])
