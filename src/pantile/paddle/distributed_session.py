"""One program in several processes, as `paddle.distributed.launch … ipu` starts them.

    process 0   feeds ─┐                              ┌─► its replicas' fetches
    process 1   feeds ─┴─► one run with all replicas ─┴─► its replicas' fetches

On IPUs every process drives its own replicas, and the gradients meet on the links between the
devices. Here process 0 runs the replicas of all, so the numbers are those of one process with
`global_replication_factor` replicas. The weights begin as process 0 has them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pantile.errors import Error, OptionError
from pantile.paddle.description import Block, Description
from pantile.paddle.inlining import inlined
from pantile.paddle.parts import divide, pruned
from pantile.paddle.peers import Follower, Leader, peers
from pantile.paddle.scope import Array, Scope, as_array, as_tensor
from pantile.paddle.session import Progress, Session, Settings


def session_for(description: Description, table: Any, *, total: int | None, **how: Any) -> Any:
    """The session of a program; `total` replicas are shared by all processes of the run."""
    group = peers() if total is not None else None
    if group is None:
        return Session(description, table, **how)
    settings: Settings = how["settings"]
    local = settings.replicas or 1
    if total != group.count * local:
        raise OptionError(
            f"global_replication_factor={total}, but {group.count} processes have {local} replicas "
            "each",
            fix="set it to replicated_graph_count times the number of processes",
        )
    settings = replace(settings, replicas=local)
    if isinstance(group, Follower):
        return _FollowingSession(
            inlined(description, table), group, **{**how, "settings": settings}
        )
    return _LeadingSession(description, table, group, **{**how, "settings": settings})


class _Shares:
    """How feeds are joined and fetches are parted: replicas are the innermost of the leading dims.

    One run takes `steps` = bps · G steps of R micro-batches each.
    """

    def __init__(self, settings: Settings, count: int) -> None:
        self._steps = settings.batches_per_step * (settings.accumulation or 1)
        self._local, self._count = settings.replicas or 1, count
        self._leading = settings.leading

    def joined(self, arrays: Sequence[Array]) -> Array:
        """The feeds of all processes as one."""
        first = arrays[0]
        rows = np.concatenate([array.reshape(self._steps, -1) for array in arrays], axis=1)
        return rows.reshape([self._count * first.shape[0], *first.shape[1:]])

    def parted(self, array: Array) -> list[Array]:
        """The fetches of all processes, from those of one run."""
        shape = array.shape[len(self._leading) :]
        steps = array.reshape(self._steps, self._count, self._local, *shape)
        parts = [steps[:, rank].reshape([*self._leading, *shape]) for rank in range(self._count)]
        return [np.ascontiguousarray(part) for part in parts]


class _LeadingSession(Session):
    """Runs the replicas of all processes."""

    def __init__(
        self, description: Description, table: Any, group: Leader, *, settings: Settings, **how: Any
    ) -> None:
        self._group, self._shares = group, _Shares(settings, group.count)
        everywhere = replace(settings, replicas=(settings.replicas or 1) * group.count)
        super().__init__(description, table, settings=everywhere, **how)
        self._busy = threading.Lock()
        self._number = group.new_program()
        group.offer_weights(self._number, self._weights)

    def run(self, arrays: Mapping[str, Array], **how: Any) -> list[Array]:
        """Run one step of all processes; the fetches of this one."""
        others = self._group.gather(self._number)
        feeds = [{name: arrays[name] for name in self.feeds if name in arrays}, *others]
        try:
            together = {
                name: self._shares.joined([feed[name] for feed in feeds]) for name in feeds[0]
            }
            with self._busy:
                results = super().run(together, **how)
        except Error as error:
            self._group.refuse(str(error))
            raise
        parts = [self._shares.parted(result) for result in results]
        shares = [[part[rank] for part in parts] for rank in range(self._group.count)]
        self._group.answer(shares[1:])
        return shares[0]

    def _weights(self) -> dict[str, tuple[Array, torch.dtype]]:
        """What `weights_to_host` stores, as it is between two runs."""
        with self._busy:
            return {
                name: (as_array(value).copy(), value.dtype) for name, value in self.current_values()
            }


class _FollowingSession:
    """Asks process 0."""

    def __init__(
        self,
        main: Block,
        group: Follower,
        *,
        feeds: Sequence[str],
        fetches: Sequence[str],
        scope: Scope,
        settings: Settings,
        loss: str | None = None,
    ) -> None:
        self.feeds, self.fetches, self.settings = tuple(feeds), tuple(fetches), settings
        parts = divide(main, training=settings.training, loss=loss)
        self.parts = pruned(parts, fetches)
        self._scope, self._group = scope, group
        self._number = group.new_program()

    def compile(self, progress: Progress | None = None) -> None:
        """Process 0 compiles."""
        if progress is not None:
            for percent in range(101):
                progress(percent)

    def run(self, arrays: Mapping[str, Array], **_: Any) -> list[Array]:
        """Run one step of all processes; the fetches of this one."""
        fed = {name: arrays[name] for name in self.feeds if name in arrays}
        results: list[Array] = self._group.ask("run", self._number, fed)
        return results

    def weights_to_host(self) -> None:
        """Give the scope the weights and the optimizer's state as they are now."""
        for name, (array, dtype) in self._group.ask("weights", self._number).items():
            self._scope.store(name, as_tensor(array, dtype))
