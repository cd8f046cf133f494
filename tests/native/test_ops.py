"""PopTorch's own ops on the native engine, against the reference engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.native.runs import runs_natively
from torch import Tensor, nn

import poptorch

poptorch.register_custom_op("pantile.test", "Softer", 1, lambda x, scale: torch.tanh(x) * scale)


class Ops(nn.Module):
    """Loops, branches, run-time slices, hints and a custom op, over a trained layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.convolution = nn.Conv1d(1, 2, 3, padding=1)

    def forward(self, x: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = poptorch.for_loop(2, lambda y: torch.sin(self.layer(y)), [x])
        (x,) = poptorch.cond(x.sum() > 0, torch.exp, [x], lambda y: y * 2, [x])
        part = poptorch.dynamic_slice(x, 1, start, 2, 1)
        x = poptorch.dynamic_update(x, part * part, 1, start, 2)
        with poptorch.MultiConv():
            x = x + self.convolution(x.unsqueeze(1)).sum(1)
        mode = poptorch.MatMulSerializationMode.ReducingDim
        x = poptorch.serializedMatMul(x, self.layer.weight, mode, factor=2)
        x = poptorch.set_available_memory(poptorch.nop(x), 0.3)
        (x,) = poptorch.custom_op([x], "Softer", "pantile.test", 1, [x], {"scale": 0.5})
        x = poptorch.recomputationCheckpoint(x)
        return x, poptorch.identity_loss(x * x, reduction="mean")


class HostAndSearch(nn.Module):
    """Python in the middle of a program, a beam search, and points."""

    def __init__(self) -> None:
        super().__init__()
        self.on_host = poptorch.CPU(lambda x: x * 2, "twice")

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.on_host(x + 1) - x
        probs = y.reshape(4, 1, 4).log_softmax(2)
        scores, sizes, labels = poptorch.ctc_beam_search_decoder(probs, torch.tensor([4]))
        return y, scores, sizes, labels, poptorch.fps(y, [0, 4]), poptorch.nearest(y, y.flip(0))


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(12, 4, generator=generator), torch.tensor([0, 1, 2])


def trained(engine: str) -> tuple[list[Tensor], list[Tensor]]:
    torch.manual_seed(0)
    model = Ops()
    options = poptorch.Options().deviceIterations(3).engine(engine)
    options.outputMode(poptorch.OutputMode.All)
    step = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    outputs = [*step(*data()), *step(*data())]
    assert engine != "native" or runs_natively(step)
    return outputs, [p.detach().clone() for p in model.parameters()]


def test_ops_train_on_the_native_engine_as_on_the_reference_engine():
    native, reference = trained("native"), trained("reference")

    for found, expected in zip(native[0] + native[1], reference[0] + reference[1], strict=True):
        assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_ops_of_the_host_run_inside_native_programs():
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(3))
    results = {}
    for engine in ("native", "reference"):
        options = poptorch.Options().deviceIterations(3).engine(engine)
        executor = poptorch.inferenceModel(HostAndSearch(), options)
        executor(x)
        results[engine] = executor(x)
        assert engine != "native" or runs_natively(executor)

    for found, expected in zip(results["native"], results["reference"], strict=True):
        assert torch.allclose(found.double(), expected.double(), atol=1e-5)


class Noticed(nn.Module):
    """Calls Python with what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self.on_host = poptorch.CPU(self.see, "see")

    def see(self, x: Tensor) -> Tensor:
        self.seen.append(x.clone())
        return x * 2

    def forward(self, x: Tensor) -> Tensor:
        return self.on_host(x + 1)


def test_compiling_does_not_call_the_users_python_with_made_up_values(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PANTILE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PANTILE_TUNE", "1")
    module = Noticed()
    model = poptorch.inferenceModel(module, poptorch.Options().engine("native"))
    model(data()[0])
    module.seen.clear()

    model(data()[0])  # is compiled

    assert runs_natively(model)
    assert [torch.equal(x, data()[0] + 1) for x in module.seen] == [True]
