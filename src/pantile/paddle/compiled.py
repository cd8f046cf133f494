"""A live Paddle program, compiled: what `api.compile` and `IpuCompiledProgram.compile` make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import fx

from pantile.errors import InputMismatch
from pantile.paddle.custom_operators import with_custom
from pantile.paddle.description import read_program
from pantile.paddle.distributed_session import session_for
from pantile.paddle.parts import Parts
from pantile.paddle.scope import Array, Scope
from pantile.paddle.session import Session
from pantile.paddle.strategy import StrategyValues
from pantile.paddle.wheel import PaddleScope, names_of, require_paddle


class CompiledProgram:
    """Runs a program; its weights are its own until `weights_to_host`."""

    def __init__(
        self,
        program: Any,
        *,
        feeds: Sequence[str],
        fetches: Sequence[str],
        values: StrategyValues,
        scope: Scope,
        loss: str | None = None,
    ) -> None:
        self._values, self._scope = values, scope
        self._scheduler = getattr(program, "lr_scheduler", None)
        description = read_program(program.desc.serialize_to_string())
        self.session: Session = session_for(
            description,
            with_custom(values.value("custom_ops")),
            total=values.replicas_of_all(),
            feeds=feeds,
            fetches=fetches,
            scope=scope,
            settings=values.settings(),
            loss=loss,
        )
        logger = values.progress_logger
        total = int(values.value("compilation_progress_total"))
        tell = None if logger is None else lambda percent: logger(percent * total // 100, total)
        self.session.compile(tell)

    @property
    def feeds(self) -> tuple[str, ...]:
        """The names that are fed."""
        return self.session.feeds

    @property
    def fetches(self) -> tuple[str, ...]:
        """The names that can be fetched."""
        return self.session.fetches

    def run(self, feed: Mapping[str, Any], fetch_list: Any = None) -> list[Array]:
        """Run one step: the fetched arrays, in the order of `fetch_list` or of compilation."""
        wanted = self.fetches if fetch_list is None else names_of(fetch_list)
        unknown = [name for name in wanted if name not in self.fetches]
        if unknown:
            raise InputMismatch(
                f"fetch_list names {', '.join(unknown)}; the program was compiled to fetch "
                f"{', '.join(self.fetches) or 'nothing'}",
                fix="name it in the fetch_list of compile()",
            )
        self._follow_schedule()
        results = self.session.run(
            {name: np.asarray(value) for name, value in feed.items()},
            evaluate=bool(self._values.value("runtime_options.enable_eval")),
            learning_rate=self._values.learning_rate(),
        )
        found = dict(zip(self.fetches, results, strict=True))
        return [found[name] for name in wanted]

    def _follow_schedule(self) -> None:
        """Write the scheduler's rate to the scope, where the session reads it."""
        scheduler = self._scheduler
        if scheduler is None:
            return
        held = self._scope.find(scheduler._var_name)
        if held is not None:
            self._scope.store(scheduler._var_name, held.fill_(float(scheduler())))

    def weights_to_host(self) -> None:
        """Give the scope the weights and the optimizer's state as they are now."""
        self.session.weights_to_host()

    @property
    def parts(self) -> Parts:
        """Forward, update, loss and parameters, as they were found."""
        return self.session.parts

    @property
    def graphs(self) -> list[fx.Graph]:
        """The recorded graphs: forward and gradients, or forward alone."""
        return [compiled.program.graph for compiled in self.session.executor._compiled]


def compile_program(
    program: Any,
    feed_list: Any,
    fetch_list: Any,
    *,
    strategy: Any,
    scope: Any = None,
) -> CompiledProgram:
    """Compile a live program with a strategy (Paddle's or ours)."""
    paddle = require_paddle()
    held = paddle.static.global_scope() if scope is None else scope
    return CompiledProgram(
        program,
        feeds=names_of(feed_list),
        fetches=names_of(fetch_list),
        values=strategy._ipu_strategy,
        scope=PaddleScope(held),
    )
