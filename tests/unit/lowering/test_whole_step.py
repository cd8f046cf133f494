"""Forward, loss, gradients and update as one Program, run by the reference engine."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from pantile.capture.forward import Request, capture
from pantile.capture.hyper import UpdateRequest
from pantile.capture.module_state import ModuleState
from pantile.capture.optimizer import capture_update
from pantile.lowering.reference import ReferenceExecutable
from pantile.passes.accumulate_gradients import accumulate_gradients
from pantile.passes.fuse_update import fuse
from pantile.passes.pipeline import run_passes
from pantile.program.spec import InputKind, OutputKind, TensorSpec
from pantile.program.structure import flatten


class Net(nn.Module):
    """Convolution, batch norm and dropout, so that buffers and random draws take part."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.out = nn.Dropout(0.3), nn.Linear(16, 3)

    def forward(self, x, labels):
        hidden = torch.relu(self.norm(self.conv(x))).flatten(1)
        return nn.functional.cross_entropy(self.out(self.drop(hidden)), labels)


def batch():
    return torch.randn(5, 1, 4, 4), torch.randint(0, 3, (5,))


def eager_step(model, optimizer, x, labels):
    optimizer.zero_grad()
    loss = model(x, labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def gradients_of(model, x, labels):
    tensors, structure = flatten(((x, labels), {}))
    state, names = ModuleState.of(model), ["x", "labels"]
    captured = capture(Request(model, model, state, structure, tensors, names, training=True))
    return run_passes(captured.program)


def values_for(program, model, optimizer, hypers, arguments, gradients=None):
    """One value for each input, from where it lives."""
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    found = []
    for entry in program.inputs:
        if entry.kind is InputKind.OPTIMIZER:
            key, _, name = entry.name.partition("/")
            found.append(optimizer.state[state[name]][key])
        elif entry.kind is InputKind.HYPER:
            found.append(hypers[entry.name].read(optimizer))
        elif entry.kind is InputKind.GRADIENT:
            found.append(gradients[entry.name])
        else:
            found.append(arguments.get(entry.name, state.get(entry.name)))
    return [v.detach() if isinstance(v, torch.Tensor) else v for v in found]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
        (torch.optim.Adam, {"lr": 0.01}),
    ],
)
def test_the_fused_program_of_a_step_gives_the_bits_of_an_eager_step(kind, settings):
    twin = Net()
    eager_optimizer = kind(twin.parameters(), **settings)
    eager_step(twin, eager_optimizer, *batch())  # state exists from the first step on
    model = copy.deepcopy(twin)
    optimizer = kind(model.parameters(), **settings)
    optimizer.load_state_dict(copy.deepcopy(eager_optimizer.state_dict()))  # torch would share it
    x, labels = batch()
    gradients = gradients_of(model, x, labels)
    names = {id(p): name for name, p in model.named_parameters()}
    specs = {out.name: out.spec for out in gradients.outputs_of(OutputKind.GRADIENT)}
    update = capture_update(UpdateRequest(optimizer, names, specs))
    hypers = {hyper.name: hyper for hyper in update.hypers}

    fused = ReferenceExecutable(run_passes(fuse(gradients, update.program)))
    for _ in range(3):
        x, labels = batch()
        random = torch.get_rng_state()
        expected = eager_step(twin, eager_optimizer, x, labels)
        torch.set_rng_state(random)
        arguments = {"x": x, "labels": labels}
        (loss,) = fused.run(values_for(fused.program, model, optimizer, hypers, arguments))

        assert torch.equal(loss, expected)
    pairs = zip(model.state_dict().values(), twin.state_dict().values(), strict=True)
    assert all(torch.equal(mine, eagers) for mine, eagers in pairs)


def test_accumulators_hold_the_sum_of_the_gradients_of_eager():
    model, twin = Net(), Net()
    twin.load_state_dict(model.state_dict())
    x, labels = batch()
    program = ReferenceExecutable(run_passes(accumulate_gradients(gradients_of(model, x, labels))))
    sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for _ in range(3):
        x, labels = batch()
        random = torch.get_rng_state()
        twin(x, labels).backward()
        torch.set_rng_state(random)
        program.run(values_for(program.program, model, None, {}, {"x": x, "labels": labels}, sums))

    assert all(torch.equal(sums[name], p.grad) for name, p in twin.named_parameters())
    assert all(TensorSpec.of(sums[name]) == TensorSpec.of(p) for name, p in twin.named_parameters())
