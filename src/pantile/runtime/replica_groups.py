"""Parameters with a value per group of replicas (spec 2.9).

The host parameter has a leading dimension, one entry per group; forward on a replica sees the
entry of its group. `executor.weight.replicaGrouping(type, shards, mode)` chooses it before the
first compilation.

With `VariableRetrievalMode.AllReplicas` the leading dimension may have one entry per replica: each
reads its own and they are all brought back. Replicas of a group begin with the first one's value.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from pantile.capture.module_state import ModuleState, StateTensor
from pantile.enums import CommGroupType, VariableRetrievalMode
from pantile.errors import StateError
from pantile.runtime.reduction import Grouping


@dataclass(frozen=True)
class Choice:
    """The arguments of one `replicaGrouping` call."""

    kind: CommGroupType
    shards: int
    retrieval: VariableRetrievalMode


class ReplicaGroups:
    """The choices made for one executor."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self.chosen: dict[str, Choice] = {}
        self._per_replica: frozenset[str] = frozenset()

    def offer(self, name: str, parameter: nn.Parameter, *, compiled: bool) -> nn.Parameter:
        """The parameter, with a `replicaGrouping` method."""

        def choose(
            comm_group_type: CommGroupType,
            shards: int,
            variable_retrieval_mode: VariableRetrievalMode,
        ) -> None:
            """Give each group of replicas its own value of this parameter."""
            if compiled:
                raise StateError(
                    f"replicaGrouping for {name!r} comes after compilation",
                    fix="call it right after wrapping the model",
                )
            if parameter.dim() == 0:
                raise StateError(
                    f"parameter {name!r} is a scalar: it has no dimension for groups",
                    fix="give the parameter a leading dimension, one entry per group",
                )
            kind = CommGroupType(comm_group_type)
            mode = VariableRetrievalMode(variable_retrieval_mode)
            self.chosen[name] = Choice(kind, shards, mode)

        parameter.replicaGrouping = _Method(choose)  # type: ignore[attr-defined]
        return parameter

    def apply(self, state: ModuleState) -> ModuleState:
        """The state with the grouped parameters marked."""
        if not self.chosen:
            return state
        self._per_replica = frozenset(e.name for e in state.entries if self._has_all_rows(e))
        rows = dict(self.grouping().groups)
        for entry in state.entries:
            if entry.name in self._per_replica:
                self._begin_alike(entry, rows[entry.name])
                rows[entry.name] = tuple(range(self._replicas))
            elif entry.name in rows:
                self._check_shape(entry, 1 + max(rows[entry.name]))
        return ModuleState(
            tuple(
                replace(entry, groups=rows[entry.name]) if entry.name in rows else entry
                for entry in state.entries
            )
        )

    def _has_all_rows(self, entry: StateTensor) -> bool:
        """Does a parameter have an entry for each replica, though there are fewer groups?"""
        choice = self.chosen.get(entry.name)
        return (
            choice is not None
            and choice.kind not in (CommGroupType.All, CommGroupType.NoGrouping)
            and choice.retrieval is VariableRetrievalMode.AllReplicas
            and entry.tensor.shape[0] == self._replicas
        )

    @staticmethod
    def _begin_alike(entry: StateTensor, groups: tuple[int, ...]) -> None:
        with torch.no_grad():
            for replica, group in enumerate(groups):
                first = groups.index(group)
                if first != replica:
                    entry.tensor[replica].copy_(entry.tensor[first])

    @staticmethod
    def _check_shape(entry: StateTensor, groups: int) -> None:
        shape = list(entry.tensor.shape)
        if shape[0] != groups:
            raise StateError(
                f"parameter {entry.name!r} has shape {shape}, and replicaGrouping makes {groups} "
                "groups of replicas: its first dimension must have one entry per group",
                fix=f"give the parameter a leading dimension of {groups}",
            )

    def grouping(self) -> Grouping:
        """For each grouped parameter, the group of every replica."""
        found = {}
        for name, choice in self.chosen.items():
            if choice.kind is not CommGroupType.All:
                found[name] = tuple(self._group(choice, r) for r in range(self._replicas))
        return Grouping(found, self._per_replica)

    def _group(self, choice: Choice, replica: int) -> int:
        if choice.kind is CommGroupType.NoGrouping:
            return replica
        if choice.kind is CommGroupType.Orthogonal:
            return replica % (self._replicas // choice.shards)
        return replica // choice.shards


class _Method:
    """A method of a parameter. In a file it becomes an empty OrderedDict: see `outputs`."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return (OrderedDict, ())
