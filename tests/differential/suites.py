"""The suites: what is compared, under which name, and the bar each has to clear."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from tests.differential.harness import Case, Outcome, Verdict, judge
from tests.differential.module_cases import module_cases, modules
from tests.differential.op_cases import op_cases, ops


@dataclass(frozen=True)
class Suite:
    """Groups of cases; a group is an op or a module."""

    name: str
    groups: Callable[[], dict[str, Callable[[int | None], Iterator[Case]]]]
    limit: int | None
    bar: str
    passes: Callable[[Sequence[tuple[str, list[Verdict]]]], bool]

    def verdicts(self, group: str, limit: int | None) -> Iterator[tuple[int, Verdict]]:
        """Judge cases of a group; with each verdict comes the number of its case."""
        for case in self.groups()[group](limit):
            yield case.index, judge(case)


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a group is that of its worst case."""
    order = list(Outcome)
    return max(verdicts, key=lambda v: order.index(v.outcome), default=Verdict(Outcome.BITWISE))


@cache
def _op_groups(training: bool) -> dict[str, Callable[[int | None], Iterator[Case]]]:
    return {
        op.formatted_name: lambda limit, op=op: op_cases(op, training=training, limit=limit)
        for op in ops(training=training)
    }


@cache
def _module_groups(training: bool) -> dict[str, Callable[[int | None], Iterator[Case]]]:
    return {
        info.formatted_name: lambda limit, info=info: module_cases(
            info, training=training, limit=limit
        )
        for info in modules()
    }


def _bitwise_groups(least: int) -> Callable[[Sequence[tuple[str, list[Verdict]]]], bool]:
    def passes(results: Sequence[tuple[str, list[Verdict]]]) -> bool:
        outcomes = [worst(verdicts).outcome for _, verdicts in results]
        return outcomes.count(Outcome.BITWISE) >= least and _nothing_wrong(results)

    return passes


def _few_refusals(results: Sequence[tuple[str, list[Verdict]]]) -> bool:
    verdicts = [verdict for _, found in results for verdict in found]
    refused = sum(verdict.outcome is Outcome.REFUSED for verdict in verdicts)
    return refused <= 0.02 * len(verdicts) and _nothing_wrong(results)


def _nothing_wrong(results: Sequence[tuple[str, list[Verdict]]]) -> bool:
    bad = (Outcome.WRONG, Outcome.CRASHED)
    return not any(verdict.outcome in bad for _, found in results for verdict in found)


OP_TRAINING = Suite(
    "op_training", lambda: _op_groups(True), 3, "at least 525 of 540 ops", _bitwise_groups(525)
)
OP_FORWARD = Suite(
    "op_forward", lambda: _op_groups(False), 3, "at least 650 of 677 ops", _bitwise_groups(650)
)
MODULE_TRAINING = Suite(
    "module_training", lambda: _module_groups(True), None, "at most 2 % refused", _few_refusals
)
MODULE_INFERENCE = Suite(
    "module_inference", lambda: _module_groups(False), None, "at most 2 % refused", _few_refusals
)
SUITES = (OP_TRAINING, OP_FORWARD, MODULE_TRAINING, MODULE_INFERENCE)
