"""How many batches a second: the asynchronous loader beside torch's, with the same workers.

    python -m benchmarks.loading
    python -m benchmarks.loading --workers 1 --rounds 9 --only images

Both read the same dataset with the same number of torch's workers, in turns, whole epochs each; the
order turns from round to round. *Batches* is what a loop that does nothing else gets per second.
*CPU* is the time of this process and all below it. Ratios are torch's time / ours, the median of
those within rounds: above 1, ours is faster. Batches are read once: a loader may not put off work.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset
from tqdm import tqdm

import poptorch

_TICKS = os.sysconf("SC_CLK_TCK")
_KEPT = 64  # samples that are kept in memory; reading files is not what is measured


class Images(Dataset[Any]):
    """Pictures of bytes that become floats, and labels."""

    def __init__(self, side: int, count: int) -> None:
        self.count = count
        self._pixels = torch.randint(0, 256, (_KEPT, 3, side, side), dtype=torch.uint8)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._pixels[index % _KEPT].float().div_(255), index % 10


class Tokens(Dataset[Any]):
    """Sequences of token numbers with masks and labels."""

    def __init__(self, length: int, count: int) -> None:
        self.count = count
        self._ids = torch.randint(1, 30_000, (_KEPT, length))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self._ids[index % _KEPT]
        return {"input_ids": ids, "attention_mask": ids > 0, "labels": ids.roll(-1)}


@dataclass(frozen=True)
class Case:
    """A dataset and the size of its batches."""

    name: str
    batch: int
    make: Callable[[int], Dataset[Any]]
    batches: int

    def dataset(self, share: float) -> Dataset[Any]:
        """So large that a round is long enough to be timed."""
        return self.make(self.batch * max(4, int(self.batches * share)))


CASES = (
    Case("images 32 × 32", 8, lambda count: Images(32, count), 400),
    Case("images 32 × 32", 64, lambda count: Images(32, count), 120),
    Case("images 32 × 32", 512, lambda count: Images(32, count), 20),
    Case("images 224 × 224", 16, lambda count: Images(224, count), 40),
    Case("images 224 × 224", 64, lambda count: Images(224, count), 12),
    Case("tokens 128", 8, lambda count: Tokens(128, count), 500),
    Case("tokens 128", 64, lambda count: Tokens(128, count), 150),
    Case("tokens 512", 256, lambda count: Tokens(512, count), 40),
)


@dataclass
class Times:
    """Seconds for a batch, a number for each round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def descendants(pid: int) -> Iterator[int]:
    """All processes below one."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield int(child)
            yield from descendants(int(child))


def cpu_seconds() -> float:
    """CPU time of this process and all below it so far."""
    total = time.process_time()
    for pid in descendants(os.getpid()):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


def epoch(loader: Iterable[Any], times: Times | None = None) -> None:
    """Read all batches once, and note what it took."""
    wall, cpu, count = time.perf_counter(), cpu_seconds(), 0
    for batch in loader:
        for tensor in batch.values() if isinstance(batch, dict) else batch:
            tensor.sum()
        count += 1
    if times is not None:
        times.cpu.append((cpu_seconds() - cpu) / count)
        times.wall.append((time.perf_counter() - wall) / count)


def compare(case: Case, workers: int, rounds: int, share: float) -> tuple[Times, Times]:
    """Torch's times and ours."""
    dataset = case.dataset(share)
    torchs = TorchLoader(
        dataset, case.batch, num_workers=max(workers, 1), drop_last=True, persistent_workers=True
    )
    ours = poptorch.DataLoader(
        poptorch.Options(),
        dataset,
        case.batch,
        num_workers=workers,
        mode=poptorch.DataLoaderMode.Async,
        async_options={"load_indefinitely": False},
    )
    pair = [(torchs, Times()), (ours, Times())]
    for loader, _ in pair:
        epoch(loader)
    for number in range(rounds):
        for loader, times in pair if number % 2 else reversed(pair):
            epoch(loader, times)
    ours.terminate()
    return pair[0][1], pair[1][1]


def ratio(torchs: list[float], ours: list[float]) -> float:
    """The median over rounds."""
    return statistics.median(a / b for a, b in zip(torchs, ours, strict=True))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7, help="repetitions (7)")
    parser.add_argument(
        "--workers",
        default="0,1,2",
        help="numbers of torch's workers (0,1,2); with 0 ours has only\n"
        "the process every asynchronous loader has, and torch's has one worker",
    )
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--quick", action="store_true", help="hardly any batches: does it run?")
    given = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [case for case in CASES if case.name.startswith(given.only)]
    runs = [(case, int(workers)) for case in chosen for workers in given.workers.split(",")]
    print("| dataset | batch | workers | torch, batches/s | ours | ratio | CPU ratio |")
    print("|---|---|---|---|---|---|---|")
    for case, workers in tqdm(runs, leave=False):
        torchs, ours = compare(case, workers, given.rounds, 0.02 if given.quick else 1.0)
        tqdm.write(
            f"| {case.name} | {case.batch} | {workers} | {1 / min(torchs.wall):.0f} | "
            f"{1 / min(ours.wall):.0f} | {ratio(torchs.wall, ours.wall):.2f} | "
            f"{ratio(torchs.cpu, ours.cpu):.2f} |"
        )


if __name__ == "__main__":
    main()
