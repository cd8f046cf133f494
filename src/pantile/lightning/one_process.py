"""What Lightning asks of a strategy about processes: here, there is one."""

from __future__ import annotations

from typing import Any


class OneProcess:
    """Ranks and collectives of a single process."""

    is_global_zero = True
    is_distributed = False
    global_rank = local_rank = node_rank = 0
    world_size = 1

    def model_to_device(self) -> None:
        """The weights stay where they are."""

    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """There is one process: nothing to reduce."""
        return tensor

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """There is one process: nothing to wait for."""

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """There is one process."""
        return obj

    def all_gather(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """There is one process."""
        return tensor

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """There is one process."""
        return decision

    def set_world_ranks(self) -> None:
        """There is one process."""
