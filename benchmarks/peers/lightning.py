"""Lightning's own training loop, held and released from outside.

    main thread                      thread of trainer.fit
    run(10)  ── ten tickets ──►      the loop asks the loader for a batch, ten times
             ◄── "waiting" ───       the loop asks for batch eleven: ten steps are done

The loop is entered once and stays in its steady state; no start of a trainer is in the figures.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.peers.eager import numbers
from benchmarks.peers.peer import Engine, Peer, Purpose, Settings
from benchmarks.workloads import Workload

_PATIENCE = 600.0
"""Seconds after which a loop that does not come back counts as broken."""


class Gate:
    """A loader that hands out the same batch, as often as it was allowed to."""

    def __init__(self, batch: tuple[torch.Tensor, ...]) -> None:
        self._batch = batch
        self._allowed = 0
        self._closed = False
        self._change = threading.Condition()
        self.waiting = threading.Event()
        self.failure: BaseException | None = None

    def __len__(self) -> int:
        # With a length, Lightning does not fetch a batch ahead to find out which one is the last.
        return 10**9

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        while self._enter():
            yield self._batch

    def _enter(self) -> bool:
        if self._allowed == 0:
            with self._change:
                self.waiting.set()
                self._change.wait_for(lambda: self._allowed or self._closed, _PATIENCE)
        self._allowed -= 1
        return not self._closed

    def allow(self, steps: int) -> None:
        """Let the loop run that many steps and wait until it asks for more."""
        with self._change:
            self.waiting.clear()
            self._allowed = steps
            self._change.notify()
        self.wait()

    def wait(self) -> None:
        """Wait until the loop stands at the gate."""
        if not self.waiting.wait(_PATIENCE):
            raise TimeoutError(f"Lightning's loop did not come back within {_PATIENCE:.0f} s")
        if self.failure is not None:
            raise RuntimeError("Lightning's loop ended with an error") from self.failure

    def close(self) -> None:
        """Tell the loop that there is no more data."""
        with self._change:
            self._closed = True
            self._change.notify()


def _module(workload: Workload) -> Any:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = workload.with_loss()
            self.latest = torch.zeros(())

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss: torch.Tensor = self.model(*batch)
            self.latest = loss.detach()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return workload.optimizer(self.model.parameters(), fused=True)

    return Module()


class Lightning(Peer):
    """`Trainer.fit` in its leanest mode, with the fused optimizer."""

    name, family, needs = "lightning", "lightning", ("lightning",)
    compiles = False

    def takes(self, workload: Workload, purpose: Purpose) -> bool:
        """Training only: it is the loop that is compared."""
        return purpose == "training"

    def training(self, workload: Workload) -> Engine:
        """Start the loop and stop it before its first step."""
        import lightning

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", module="lightning")
        module, gate = _module(workload), Gate(workload.batch())
        trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=1, barebones=True)

        def fit() -> None:
            try:
                trainer.fit(module, gate)
            except BaseException as error:
                gate.failure = error
            finally:
                gate.waiting.set()

        thread = threading.Thread(target=fit, name="lightning", daemon=True)
        thread.start()
        gate.wait()

        def run(calls: int) -> torch.Tensor:
            gate.allow(calls)
            return module.latest

        def close() -> None:
            gate.close()
            thread.join(_PATIENCE)

        return Engine(run, numbers, close=close)


def peers(settings: Settings) -> list[Peer]:
    """The loop."""
    return [Lightning()]
