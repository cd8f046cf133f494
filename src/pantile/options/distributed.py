"""`Options.Distributed`: which of several processes this one is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar, Self

from pantile.errors import OptionError
from pantile.options.storage import Field, OptionGroup
from pantile.options.validate import not_negative, positive, text

OPEN_MPI_SIZE = "OMPI_COMM_WORLD_SIZE"
OPEN_MPI_RANK = "OMPI_COMM_WORLD_RANK"


class _DistributedOptions(OptionGroup):
    """The place of this process among the processes of a run."""

    PREFIX = "Distributed."
    FIELDS: ClassVar[Mapping[str, Field]] = {
        "num_distributed_processes": Field(positive, 1, setter="configureProcessId"),
        "distributed_process_id": Field(not_negative, 0, setter="configureProcessId"),
    }

    num_distributed_processes: int
    distributed_process_id: int

    def __init__(self) -> None:
        super().__init__()
        self._read_environment(OPEN_MPI_SIZE, OPEN_MPI_RANK)

    def configureProcessId(self, process_id: int, num_processes: int) -> Self:
        """Say that this is process `process_id` of `num_processes`."""
        return self._place(process_id, num_processes)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Self:
        """Read the number of processes and the id of this one from the environment, now."""
        return self._read_environment(
            text("Distributed.setEnvVarNames", var_num_processes),
            text("Distributed.setEnvVarNames", var_process_id),
        )

    def disable(self) -> Self:
        """Be the only process, whatever the environment says."""
        return self._place(0, 1)

    @property
    def processId(self) -> int:
        """The id of this process, from 0."""
        return self.distributed_process_id

    @property
    def numProcesses(self) -> int:
        """The number of processes in the run."""
        return self.num_distributed_processes

    def _place(self, process_id: int, num_processes: int) -> Self:
        count = positive("Distributed.configureProcessId num_processes", num_processes)
        place = not_negative("Distributed.configureProcessId process_id", process_id)
        if place >= count:
            raise OptionError(
                f"Distributed.configureProcessId: process_id {place} is not one of {count}",
                fix=f"use an id from 0 to {count - 1}",
            )
        return self.set(num_distributed_processes=count, distributed_process_id=place)

    def _read_environment(self, var_num_processes: str, var_process_id: str) -> Self:
        return self._place(
            _number_in(var_process_id, default=0), _number_in(var_num_processes, default=1)
        )


def _number_in(variable: str, *, default: int) -> int:
    written = os.environ.get(variable, "")
    if not written:
        return default
    try:
        return int(written)
    except ValueError:
        raise OptionError(
            f"environment variable {variable} is {written!r}, not a whole number",
            fix=f"unset {variable}, or set it to a number",
        ) from None
