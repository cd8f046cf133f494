"""One operator, computed by Paddle's own kernel and by its translation, forward and gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle
import torch

from pantile.paddle.call import Call
from pantile.paddle.description import Description, read_program
from pantile.paddle.registry import translations
from pantile.paddle.scope import TensorScope
from pantile.paddle.session import Session, Settings

Arrays = np.ndarray | Sequence[np.ndarray]


@dataclass(frozen=True)
class Case:
    """An operator with inputs by slot and attributes; `outputs` counts the results of slots."""

    op: str
    inputs: Mapping[str, Arrays] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, int] = field(default_factory=lambda: {"Out": 1})
    hidden: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ("X",)
    in_place: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 1e-5
    name: str = ""

    def __str__(self) -> str:
        return f"{self.op}-{self.name}" if self.name else self.op

    def flat(self) -> dict[str, np.ndarray]:
        """Every input array under the name of its variable."""
        return {
            f"{slot.lower()}_{index}": array
            for slot, arrays in self.inputs.items()
            for index, array in enumerate(_many(arrays))
        }


@dataclass(frozen=True)
class Built:
    """The program of a case."""

    program: Any
    description: Description
    outputs: tuple[str, ...]
    differentiated: tuple[str, ...]
    gradients: tuple[str, ...]


def _many(arrays: Arrays) -> Sequence[np.ndarray]:
    return [arrays] if isinstance(arrays, np.ndarray) else arrays


def build(case: Case) -> Built:
    """A program with the operator alone, and Paddle's backward part if there are gradients."""
    program = paddle.static.Program()
    with paddle.static.program_guard(program, paddle.static.Program()):
        block = program.global_block()
        fed = {}
        for slot, arrays in case.inputs.items():
            fed[slot] = []
            for index, array in enumerate(_many(arrays)):
                variable = paddle.static.data(
                    f"{slot.lower()}_{index}", list(array.shape), str(array.dtype)
                )
                variable.stop_gradient = not (slot in case.gradients and array.dtype.kind == "f")
                fed[slot].append(variable)
        made = {
            slot: [block.create_var(name=f"out_{slot}_{i}", dtype="float32") for i in range(count)]
            for slot, count in {**dict.fromkeys(case.hidden, 1), **case.outputs}.items()
        }
        made.update({slot: fed[source] for slot, source in case.in_place.items()})
        block.append_op(type=case.op, inputs=fed, outputs=made, attrs=dict(case.attributes))
        outputs = [v for slot in case.outputs for v in made[slot]]
        summed = [v for v in outputs if all(v is not inner for vs in fed.values() for inner in vs)]
        description = read_program(program.desc.serialize_to_string())
        wanted = [v for s in case.gradients for v in fed.get(s, ()) if not v.stop_gradient]
        found = _backward(summed, wanted) if wanted else []
    pairs = [(v.name, g.name) for v, g in zip(wanted, found, strict=True) if g is not None]
    return Built(
        program,
        description,
        tuple(v.name for v in outputs),
        tuple(name for name, _ in pairs),
        tuple(name for _, name in pairs),
    )


def _fixed_shape(shape: Sequence[int]) -> bool:
    return all(size >= 0 for size in shape)


def _weights(shape: Sequence[int], place: int) -> np.ndarray:
    return np.cos(np.arange(int(np.prod(shape)), dtype="float64") + place).reshape(shape)


def _backward(outputs: list[Any], wanted: list[Any]) -> list[Any]:
    """Gradients of a weighted sum of all results, so that no symmetry hides a mistake."""
    terms = []
    for place, variable in enumerate(outputs):
        if variable.dtype in (paddle.float32, paddle.float64):
            term = paddle.cast(variable, "float32")
            if _fixed_shape(variable.shape):
                term = term * paddle.assign(_weights(variable.shape, place).astype("float32"))
            terms.append(paddle.sum(term))
    return paddle.static.gradients([paddle.add_n(terms)], wanted)


def by_paddle(case: Case, built: Built) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Results and gradients of Paddle's CPU executor."""
    executor = paddle.static.Executor(paddle.CPUPlace())
    names = [*built.outputs, *built.gradients]
    found = executor.run(built.program, feed=case.flat(), fetch_list=names)
    return found[: len(built.outputs)], found[len(built.outputs) :]


def by_translation(case: Case, built: Built) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Results of a compiled session, gradients of torch's autograd through the translation."""
    session = Session(
        built.description,
        translations(),
        feeds=tuple(case.flat()),
        fetches=built.outputs,
        scope=TensorScope({}),
        settings=Settings(micro_batch=1),
    )
    results = session.run(case.flat())
    return results, _by_autograd(case, built)


def _by_autograd(case: Case, built: Built) -> list[np.ndarray]:
    values = {name: torch.from_numpy(np.array(array)) for name, array in case.flat().items()}
    leaves = [values[name].requires_grad_() for name in built.differentiated]
    if not leaves:
        return []
    (operator,) = (op for op in built.description.main.operators if op.type == case.op)
    translations()[case.op](Call(operator, values, built.description.main.variables))
    total = torch.zeros(())
    for place, name in enumerate(n for n in built.outputs if n not in case.flat()):
        if values[name].is_floating_point():
            declared = built.description.main.variables[name].shape
            weights = torch.from_numpy(_weights(values[name].shape, place)).float()
            term = values[name].float()
            total = total + (term * weights if _fixed_shape(declared) else term).sum()
    gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    pairs = zip(leaves, gradients, strict=True)
    return [(torch.zeros_like(leaf) if g is None else g).numpy() for leaf, g in pairs]


def check(case: Case) -> None:
    """Both agree on results (shape, type and values) and gradients."""
    built = build(case)
    expected, expected_gradients = by_paddle(case, built)
    results, gradients = by_translation(case, built)
    for name, want, got in zip(built.outputs, expected, results, strict=True):
        want = want if want.ndim else want.reshape(1)
        assert got.dtype == want.dtype, f"{name}: {got.dtype}, Paddle has {want.dtype}"
        assert got.shape == want.shape, f"{name}: {got.shape}, Paddle has {want.shape}"
        np.testing.assert_allclose(got, want, rtol=case.tolerance, atol=case.tolerance)
    for name, want, got in zip(built.differentiated, expected_gradients, gradients, strict=True):
        np.testing.assert_allclose(
            got, want, rtol=case.tolerance, atol=case.tolerance, err_msg=f"gradient of {name}"
        )
