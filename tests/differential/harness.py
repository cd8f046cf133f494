"""One comparison against eager PyTorch: the same module, arguments and seed, twice.

    module ──eager──────────────────────────────►  outputs, gradients, state, arguments
       └────capture ─ passes ─ reference engine ►  the same four, bit for bit, or a typed refusal

Bit for bit means equal dtype, shape and values, NaN equal to NaN; the sign of zero is ignored.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import nn

from pantile.capture.forward import Captured, Request, capture
from pantile.capture.module_state import ModuleState
from pantile.errors import Error
from pantile.lowering.reference import ReferenceExecutable
from pantile.passes.pipeline import run_passes
from pantile.program.spec import InputKind, OutputKind
from pantile.program.structure import flatten, leaf_names, unflatten

SEED = 4711


class Outcome(Enum):
    """How one comparison ended, from best to worst."""

    BITWISE = "bitwise"
    UNDEFINED = "undefined"  # the op leaves memory unset: only shape and dtype can agree
    BOTH_RAISE = "both raise"  # eager raises too, and our error is also of its class
    REFUSED = "refused"
    CRASHED = "crashed"
    WRONG = "wrong"


@dataclass(frozen=True)
class Verdict:
    """The outcome, and why."""

    outcome: Outcome
    reason: str = ""
    error: str = ""


@dataclass
class Results:
    """What one run leaves behind, by name."""

    outputs: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    arguments: dict[str, torch.Tensor] = field(default_factory=dict)


def spread(count: int, limit: int | None) -> list[int]:
    """At most `limit` of the numbers below `count`, the first and the last among them."""
    if limit is None or count <= limit:
        return list(range(count))
    return sorted({round(i * (count - 1) / max(limit - 1, 1)) for i in range(limit)})


@dataclass(frozen=True, eq=False)
class Case:
    """A module and a call of it. In training, forward returns `(outputs, loss)`."""

    name: str
    index: int
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    training: bool
    values_defined: bool = True


def judge(case: Case) -> Verdict:
    """Compare one case with eager."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = _quietly(lambda: run_eager(case))
        got = _quietly(lambda: run_captured(case))
    if isinstance(got, Error) and isinstance(wanted, Exception) and isinstance(got, type(wanted)):
        return Verdict(Outcome.BOTH_RAISE, got.message, error_name(got))
    if isinstance(got, Error):
        return Verdict(Outcome.REFUSED, got.message, error_name(got))
    if isinstance(got, Exception):
        return Verdict(Outcome.CRASHED, str(got), error_name(got))
    if isinstance(wanted, Exception):
        return Verdict(Outcome.WRONG, f"eager raises, we do not: {wanted}", error_name(wanted))
    difference = differs(wanted, got, values=case.values_defined)
    if difference:
        return Verdict(Outcome.WRONG, difference)
    return Verdict(Outcome.BITWISE if case.values_defined else Outcome.UNDEFINED)


def _quietly(run: Callable[[], Results]) -> Results | Exception:
    try:
        return run()
    except Exception as error:
        return error


def error_name(error: Exception) -> str:
    """The class of an error."""
    return type(error).__name__


def run_eager(case: Case) -> Results:
    """The case as PyTorch runs it."""
    module = _copy(case.module)
    tensors, structure = flatten((case.args, case.kwargs))
    tensors = [copy_tensor(t) for t in tensors]
    args, kwargs = unflatten(structure, tensors)
    torch.manual_seed(SEED)
    with torch.set_grad_enabled(case.training):
        returned = module(*args, **kwargs)
        if case.training and returned[1].requires_grad:
            returned[1].backward()
    found = Results(outputs=by_name(returned))
    found.gradients = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    found.state = {name: tensor.detach() for name, tensor in state.items()}
    names = leaf_names(structure, "argument")
    found.arguments = dict(zip(names, tensors, strict=True))
    return found


def run_captured(case: Case) -> Results:
    """The case through capture, passes and the reference engine."""
    module = _copy(case.module)
    tensors, structure = flatten((case.args, case.kwargs))
    tensors = [copy_tensor(t) for t in tensors]
    names = leaf_names(structure, "argument")
    state = ModuleState.of(module)
    captured = capture(
        Request(module, module, state, structure, tensors, names, training=case.training)
    )
    executable = ReferenceExecutable(run_passes(captured.program))
    held = {InputKind.ARGUMENT: dict(zip(names, tensors, strict=True))}
    held[InputKind.PARAMETER] = held[InputKind.BUFFER] = {
        name: tensor.detach() for name, tensor in state.tensors().items()
    }
    torch.manual_seed(SEED)
    results = executable.run([held[e.kind][e.name] for e in executable.program.inputs])
    found = Results(outputs=by_name(_rebuild(captured, results)))
    for output, value in zip(executable.program.outputs, results, strict=True):
        if output.kind is OutputKind.GRADIENT:
            found.gradients[output.name] = value
    found.state = held[InputKind.PARAMETER]
    found.arguments = held[InputKind.ARGUMENT]
    return found


def _rebuild(captured: Captured, results: Sequence[Any]) -> Any:
    leaves = [results[i] if isinstance(i, int) else i for i in captured.leaves]
    return unflatten(captured.structure, leaves)


def _copy(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module)


def copy_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of its own memory, at the same place in it: `as_strided` looks beyond a view."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return tensor.clone()
    memory = tensor.untyped_storage().clone()
    place = (tensor.storage_offset(), tensor.shape, tensor.stride())
    return torch.empty(0, dtype=tensor.dtype).set_(memory, *place)


def by_name(returned: Any) -> dict[str, Any]:
    """The tensors of a nested result, and the rest of it as text."""
    tensors, structure = flatten(returned)
    found: dict[str, Any] = dict(zip(leaf_names(structure, "output"), tensors, strict=True))
    found["structure"] = repr(unflatten(structure, [None] * len(tensors)))
    return found


def differs(wanted: Results, got: Results, *, values: bool = True) -> str:
    """The first difference, or nothing."""
    for part in ("outputs", "gradients", "state", "arguments"):
        one, other = getattr(wanted, part), getattr(got, part)
        if one.keys() != other.keys():
            return f"{part}: eager has {sorted(one)}, we have {sorted(other)}"
        for name, value in one.items():
            if not same(value, other[name], values=values):
                return f"{part} {name}: {_distance(value, other[name])}"
    return ""


def same(a: Any, b: Any, *, values: bool = True) -> bool:
    """Bitwise equality, NaN equal to NaN."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and bool(a == b)
    if a.dtype is not b.dtype or a.shape != b.shape or a.layout is not b.layout:
        return False
    if not values:
        return True
    a, b = a.detach().resolve_conj().resolve_neg(), b.detach().resolve_conj().resolve_neg()
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def _distance(a: Any, b: Any) -> str:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return f"eager {a!r}, ours {b!r}"
    if a.dtype is not b.dtype or a.shape != b.shape:
        return f"eager {a.dtype}{list(a.shape)}, ours {b.dtype}{list(b.shape)}"
    wide = torch.complex128 if a.is_complex() else torch.float64
    return f"greatest difference {(a.detach().to(wide) - b.detach().to(wide)).abs().max():.3g}"
