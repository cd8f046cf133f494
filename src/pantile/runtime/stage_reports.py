"""`pipelineSchedule`: the part of an executor that tells about stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pantile.errors import StateError
from pantile.options import Options
from pantile.runtime.compiled import Compiled

if TYPE_CHECKING:
    from pantile.runtime.pipeline.report import StageReport


class StageReports:
    """The part of an executor that tells about stages."""

    _compiled: list[Compiled]
    _options: Options
    _training: bool

    def pipelineSchedule(self) -> StageReport:
        """The schedule of the compiled model: which stage does what when, and what it costs.

        It is that of the first signature the model was compiled for. Print it, or take `as_json()`.
        """
        if not self._compiled:
            raise StateError(
                "the model has not been compiled: it has no schedule yet",
                fix="call the model, or compile(...), first",
            )
        # Imported late: not needed to run a model.
        from pantile.runtime.pipeline.plan import make_plan
        from pantile.runtime.pipeline.report import report_of

        first = self._compiled[0]
        plan = first.pipeline or make_plan(
            first.program, first.placement, self._options, training=self._training
        )
        options = self._options
        count = options.Training.gradient_accumulation if self._training else None
        return report_of(plan, options.device_iterations if count is None else count)
