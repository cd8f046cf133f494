"""What a `DataLoader` loads and how, as plain data: it can be carried to a worker process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader as TorchLoader

from pantile.data.combine import group
from pantile.data.lifetime import tied


@dataclass(frozen=True)
class LoaderPlan:
    """The dataset, the arguments of torch's loader, and how its batches become combined ones."""

    dataset: Any
    arguments: Mapping[str, Any]
    micro_batches: int  # how many batches of a batch sampler are joined
    drop_last: bool
    combined: int | None
    is_rebatched: bool

    @property
    def has_smaller_last_batch(self) -> bool:
        """Whether the last batch of torch's loader may have fewer rows than the others."""
        is_sampled = "batch_sampler" in self.arguments
        return not self.drop_last and not is_sampled and self.combined not in (None, 1)

    @property
    def writers(self) -> int:
        """How many of torch's workers can write their batches into rings of their own."""
        return int(self.arguments["num_workers"]) if self.is_whole else 0

    @property
    def is_whole(self) -> bool:
        """Whether a batch of torch's loader is an item as it is."""
        return self.micro_batches == 1 and not self.is_rebatched

    def open(self, wrap_collate: Callable[[Any], Any] | None = None) -> Iterable[Any]:
        """The batches; each iteration is an epoch. `wrap_collate` changes how they are collated."""
        return _Epochs(self, wrap_collate)


class _Epochs:
    def __init__(self, plan: LoaderPlan, wrap_collate: Callable[[Any], Any] | None) -> None:
        arguments = {**plan.arguments}
        if arguments["num_workers"] > 0:
            arguments["worker_init_fn"] = tied(arguments.get("worker_init_fn"))
        self._plan = plan
        self._loader: TorchLoader[Any] = TorchLoader(plan.dataset, **arguments)
        if wrap_collate is not None:
            self._loader.collate_fn = wrap_collate(self._loader.collate_fn)

    def __iter__(self) -> Iterator[Any]:
        if self._plan.micro_batches == 1:
            return iter(self._loader)
        return group(self._loader, self._plan.micro_batches, drop_last=self._plan.drop_last)


def plan_of(dataset: Any) -> LoaderPlan | None:
    """The plan of a `DataLoader`, None for anything else."""
    plan = getattr(dataset, "_plan", None)
    return plan if isinstance(plan, LoaderPlan) else None
