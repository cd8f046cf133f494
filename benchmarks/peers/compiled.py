"""`torch.compile`: of the model with its loss, and of the whole step."""

from __future__ import annotations

import torch
import torch._inductor.config as inductor_config

from benchmarks.peers.eager import numbers
from benchmarks.peers.peer import Engine, Peer, Purpose, Settings, repeated
from benchmarks.workloads import Workload


class CompiledModel(Peer):
    """The model is compiled; loop and fused optimizer stay eager."""

    name, family = "compile-model", "compiled"
    frozen = False

    def training(self, workload: Workload) -> Engine:
        """Compiled forward and backward."""
        model, (x, labels) = workload.with_loss(), workload.batch()
        optimizer = workload.optimizer(model.parameters(), fused=True)
        compiled = torch.compile(model)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = compiled(x, labels)
            loss.backward()
            optimizer.step()
            return loss

        return Engine(repeated(step), numbers)

    def inference(self, workload: Workload) -> Engine:
        """Compiled forward."""
        # Options of its own keep the frozen code apart from the other in Dynamo's cache.
        options = {"freezing": True} if self.frozen else None
        compiled = torch.compile(workload.model().eval(), options=options)
        x = workload.batch()[0]

        def run(calls: int) -> torch.Tensor:
            with torch.no_grad():
                return repeated(lambda: compiled(x))(calls)

        return Engine(run, numbers)


class FrozenModel(CompiledModel):
    """Inference with the weights as constants, which lets Inductor pack them in advance."""

    name = "compile-frozen"
    frozen = True

    def takes(self, workload: Workload, purpose: Purpose) -> bool:
        """Inference only."""
        return purpose == "inference"

    def inference(self, workload: Workload) -> Engine:
        """Compiled forward, compiled here, because tracing looks at the global flag."""
        engine = super().inference(workload)
        with inductor_config.patch(freezing=True):
            engine.run(1)
        return engine


class CompiledStep(Peer):
    """The function that does the whole step is compiled, its optimizer included."""

    name, family = "compile-step", "compiled"

    def takes(self, workload: Workload, purpose: Purpose) -> bool:
        """Training only: for inference it is the same as compiling the model."""
        return purpose == "training"

    def training(self, workload: Workload) -> Engine:
        """zero_grad, forward, backward, step, all under torch.compile."""
        model, (x, labels) = workload.with_loss(), workload.batch()
        optimizer = workload.optimizer(model.parameters())

        @torch.compile
        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(x, labels)
            loss.backward()
            optimizer.step()
            return loss

        return Engine(repeated(step), numbers)


def peers(settings: Settings) -> list[Peer]:
    """Model, step, and the model frozen for inference."""
    return [CompiledModel(), CompiledStep(), FrozenModel()]
