"""What an executor tells about its stages: the schedule, the cost of each stage, the balance.

Two kinds of numbers: the schedule is exact; costs are estimated from shapes, and what is simulated
from them is for comparing placements, not for predicting times.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pantile.runtime.pipeline.costs import StageCost, balance, cost_table, stage_costs
from pantile.runtime.pipeline.plan import Plan
from pantile.schedule import Schedule, Timeline, print_schedule, simulate


@dataclass(frozen=True)
class StageReport:
    """The schedule of a compiled model, and what its stages cost. Print it, or take `as_json()`.

    `ordered` says why this host runs micro-batches one after the other, if it does.
    """

    schedule: Schedule
    costs: tuple[StageCost, ...]
    ordered: str = ""

    @property
    def balance(self) -> float:
        """The mean of the IPUs' work over the largest."""
        return balance(self.costs)

    @property
    def timeline(self) -> Timeline:
        """The schedule, simulated with estimated operations (in millions) as times."""
        return simulate(self.schedule, [cost.times for cost in self.costs])

    def as_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "schedule": self.schedule.as_json(),
            "stages": [cost.as_json() for cost in self.costs],
            "balance": self.balance,
            "simulated": self.timeline.as_json(),
            "ordered": self.ordered,
        }

    def json(self) -> str:
        """`as_json()` as text."""
        return json.dumps(self.as_json(), indent=2)

    def __str__(self) -> str:
        timeline = self.timeline
        held = ", ".join(map(str, timeline.in_flight))
        lines = [
            print_schedule(self.schedule),
            f"{cost_table(self.costs)}\n",
            f"balance {self.balance:.2f}, idle {timeline.bubble:.0%} (estimated); "
            f"micro-batches in flight per stage: {held}\n",
        ]
        if self.ordered:
            lines.append(f"here micro-batches run one after the other: {self.ordered}\n")
        return "\n".join(lines)


def report_of(plan: Plan, micro_batches: int) -> StageReport:
    """The report of a placed program."""
    costs = stage_costs(plan.split, plan.placement)
    return StageReport(plan.schedule(micro_batches), costs, plan.ordered)
