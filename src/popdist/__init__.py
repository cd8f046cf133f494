"""What `import popdist` finds when no launcher started the script: a run of one instance.

Scripts ask `isPopdistEnvSet()` first and take their single-process way when it is False; the
other functions answer for that one instance, so scripts that do not ask work as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

__all__ = [
    "execute_on_instances",
    "getInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "init",
    "isPopdistEnvSet",
]


def isPopdistEnvSet() -> bool:
    """Whether a launcher started this process."""
    return False


def init() -> None:
    """Join the other instances; there are none to wait for."""


def getInstanceIndex() -> int:
    """The index of this instance, from 0."""
    return 0


def getNumInstances() -> int:
    """The number of instances in the run."""
    return 1


def getNumTotalReplicas() -> int:
    """The number of replicas over all instances."""
    return 1


def getNumLocalReplicas() -> int:
    """The number of replicas of this instance."""
    return 1


def getNumIpusPerReplica() -> int:
    """The number of IPUs the launcher gave each replica."""
    return 1


def execute_on_instances(
    instances: Collection[int], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call `function` if this instance is one of `instances`; return its result, else None."""
    return function(*args, **kwargs) if getInstanceIndex() in instances else None
