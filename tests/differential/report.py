"""Print how many ops and modules match eager bit for bit: `python -m tests.differential.report`.

    python -m tests.differential.report                    all suites, as the bars are stated
    python -m tests.differential.report op_forward         one of them
    python -m tests.differential.report --all-samples      every sample of every op

Exits with 1 below a bar, and when a refusal is not listed (or a listed one runs). Of ops, refusals
are listed for the first three samples.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import torch
from tests.differential.harness import Outcome, Verdict
from tests.differential.refusals import complaint, is_wrong, known_refusals
from tests.differential.suites import SUITES, Suite, worst


def main(arguments: list[str] | None = None) -> int:
    """Run the suites and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suites", nargs="*", choices=[[], *(s.name for s in SUITES)])
    parser.add_argument("--all-samples", action="store_true", help="not only three of each op")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    wanted = [s for s in SUITES if not chosen.suites or s.name in chosen.suites]
    passed = [report(s, limit=None if chosen.all_samples else s.limit) for s in wanted]
    return 0 if all(passed) else 1


def report(suite: Suite, limit: int | None) -> bool:
    """Run one suite and print its table; True if it clears its bar."""
    begin = time.perf_counter()
    results: list[tuple[str, list[Verdict]]] = []
    complaints: list[str] = []
    for name in suite.groups():
        verdicts = []
        for index, verdict in suite.verdicts(name, limit):
            verdicts.append(verdict)
            if suite.limit is None or index < suite.limit or is_wrong(verdict):
                complaints.append(complaint(suite.name, name, index, verdict))
        results.append((name, verdicts))
    complaints = [line for line in complaints if line]
    passed = suite.passes(results) and not complaints
    _print(suite, results, time.perf_counter() - begin)
    for line in complaints:
        print(f"  ! {line.splitlines()[0]}")
    print(f"  {'passed' if passed else 'FAILED'}: {suite.bar}, nothing wrong, refusals as listed\n")
    return passed


def _print(suite: Suite, results: list[tuple[str, list[Verdict]]], seconds: float) -> None:
    groups = Counter(worst(verdicts).outcome for _, verdicts in results)
    cases = Counter(verdict.outcome for _, verdicts in results for verdict in verdicts)
    print(f"{suite.name}: {len(results)} groups, {cases.total()} cases, {seconds:.0f} s")
    for outcome in Outcome:
        print(f"  {outcome.value:<10}{groups[outcome]:>6} groups{cases[outcome]:>8} cases")
    for name, verdicts in results:
        found = worst(verdicts)
        if found.outcome in (Outcome.BITWISE, Outcome.UNDEFINED, Outcome.BOTH_RAISE):
            continue
        count = sum(verdict.outcome is found.outcome for verdict in verdicts)
        known = known_refusals(suite.name).get(name)
        reason = known.reason if known else found.reason.splitlines()[0]
        print(
            f"  - {name} ({count} of {len(verdicts)} {found.outcome.value}) {found.error}: {reason}"
        )


if __name__ == "__main__":
    sys.exit(main())
