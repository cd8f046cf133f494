"""`popdist.poptorch.Options`: options whose replicas and processes the launcher decides."""

from __future__ import annotations

from typing import ClassVar, NoReturn, Self

import popdist
from pantile import options
from pantile.errors import LauncherOption
from pantile.options.validate import positive

__all__ = ["Options"]


def _refuse(call: str) -> NoReturn:
    raise LauncherOption(
        f"Cannot call `{call}` with popdist.poptorch.Options: the launcher decides it",
        fix="change the launcher's arguments, or use poptorch.Options",
    )


class _LaunchedDistributedOptions(options._DistributedOptions):
    """The place of this process, as the launcher set it."""

    def configureProcessId(self, process_id: int, num_processes: int = 1) -> Self:
        """Raise: the launcher knows which process this is."""
        _refuse("Distributed.configureProcessId")

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Self:
        """Raise: the launcher knows which process this is."""
        _refuse("Distributed.setEnvVarNames")

    def disable(self) -> Self:
        """Raise: the launcher knows which process this is."""
        _refuse("Distributed.disable")

    def _read_environment(self, var_num_processes: str, var_process_id: str) -> Self:
        return self._place(popdist.getInstanceIndex(), popdist.getNumInstances())


class Options(options.Options):
    """`poptorch.Options` with replicas, process id and device taken from the launcher."""

    _DISTRIBUTED: ClassVar[type[options._DistributedOptions]] = _LaunchedDistributedOptions

    def __init__(self, ipus_per_replica: int | None = None) -> None:
        super().__init__()
        given = popdist.getNumIpusPerReplica() if ipus_per_replica is None else ipus_per_replica
        self._ipus_per_replica: int = positive("ipus_per_replica", given)
        self.set(replication_factor=popdist.getNumLocalReplicas())

    @property
    def ipus_per_replica(self) -> int:
        """The number of IPUs each replica takes."""
        return self._ipus_per_replica

    def replicationFactor(self, replication_factor: int) -> Self:
        """Raise: the launcher knows the number of replicas."""
        _refuse("replicationFactor")

    def useIpuId(self, ipu_id: int) -> Self:
        """Raise: the launcher chooses the device."""
        _refuse("useIpuId")
