"""Run captured updates of an optimizer, as they are and after a pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from pantile.capture.hyper import UpdateProgram, UpdateRequest, state_name, structure_of
from pantile.capture.optimizer import capture_update
from pantile.lowering.reference import ReferenceExecutable
from pantile.passes.pipeline import run_passes
from pantile.program.program import Program
from pantile.program.spec import InputKind, TensorSpec

Parameters = list[torch.nn.Parameter]


def parameters(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> Parameters:
    """Parameters of those shapes, always the same."""
    generator = torch.Generator().manual_seed(3)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [torch.nn.Parameter(tensor.to(dtype)) for tensor in drawn]


def captured(optimizer: torch.optim.Optimizer) -> UpdateProgram:
    """The update of an optimizer as it is now; its program after the usual passes."""
    names = _names(optimizer)
    owned = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = {names[id(p)]: TensorSpec.of(p) for p in owned}
    update = capture_update(UpdateRequest(optimizer, names, gradients))
    return UpdateProgram(run_passes(update.program), update.hypers, update.structure)


def _names(optimizer: torch.optim.Optimizer) -> dict[int, str]:
    owned = [p for group in optimizer.param_groups for p in group["params"]]
    return {id(p): f"p{i}" for i, p in enumerate(owned)}


def _still_holds(update: UpdateProgram, optimizer: torch.optim.Optimizer) -> bool:
    if update.program.guards:
        return False
    return bool(update.structure == structure_of(optimizer, _names(optimizer)))


def apply(
    optimizer: torch.optim.Optimizer,
    update: UpdateProgram,
    gradients: Sequence[torch.Tensor],
    program: Program,
) -> None:
    """Run a program of this update on the optimizer's tensors; numbers as it wants them."""
    owned = {f"p{i}": p for i, p in enumerate(optimizer.param_groups[0]["params"])}
    sources: dict[InputKind, dict[str, Any]] = {
        InputKind.PARAMETER: {name: p.detach() for name, p in owned.items()},
        InputKind.GRADIENT: dict(zip(owned, gradients, strict=True)),
        InputKind.OPTIMIZER: {
            state_name(key, name): value
            for name, p in owned.items()
            for key, value in optimizer.state[p].items()
        },
        InputKind.HYPER: {hyper.name: hyper.read(optimizer) for hyper in update.hypers},
    }
    values = [_as_wanted(sources[e.kind][e.name], e.spec) for e in program.inputs]
    results = ReferenceExecutable(program).run(values)
    for output, result in zip(program.outputs, results, strict=True):
        key, _, name = output.name.partition("/")
        optimizer.state[owned[name]][key] = result.clone()


def _as_wanted(value: Any, spec: object) -> Any:
    if isinstance(spec, TensorSpec) and isinstance(value, float):
        return torch.tensor(value, dtype=spec.dtype)
    return value


def compare_steps(
    build: Callable[[], torch.optim.Optimizer],
    change: Callable[[Program], Program],
    *,
    steps: int,
    rtol: float,
    atol: float,
) -> None:
    """Assert that updates and changed updates do the same to weights and state, step by step."""
    plain, changed = build(), build()
    generator = torch.Generator().manual_seed(5)
    owned = (optimizer.param_groups[0]["params"] for optimizer in (plain, changed))
    pairs = list(zip(*owned, strict=True))
    update = program = None
    for _ in range(steps):
        if update is None or program is None or not _still_holds(update, plain):
            update = captured(plain)
            program = change(update.program)
        gradients = [torch.randn(p.shape, generator=generator).to(p.dtype) for p, _ in pairs]
        apply(changed, update, [g.clone() for g in gradients], program)
        apply(plain, update, gradients, update.program)
    for wanted, got in pairs:
        torch.testing.assert_close(got, wanted, rtol=rtol, atol=atol)
        assert changed.state[got].keys() == plain.state[wanted].keys()
        for key, value in plain.state[wanted].items():
            torch.testing.assert_close(changed.state[got][key], value, rtol=rtol, atol=atol)
