"""Recorded numbers become tensors: every optimizer of torch's database computes the same."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.passes.step_programs import gradients
from tests.unit.passes.update_steps import captured, compare_steps, parameters
from tests.unit.program.builder import Builder, aten
from torch.testing._internal import common_optimizers as database

import poptorch
from pantile.errors import ProgramError
from pantile.lowering.reference import ReferenceExecutable
from pantile.passes.fuse_update import fuse
from pantile.passes.numbers_as_tensors import numbers_as_tensors
from pantile.program.program import Program
from pantile.program.spec import Guard, InputKind, OutputKind, TensorSpec
from pantile.program.text import constants_of, equal, parse_program, print_program
from pantile.program.verify import verify

UNSUPPORTED = {"LBFGS", "SparseAdam"}
# A parameter of one number as well: it must not become float64 where it meets a number that is.
SHAPES = ((3, 4), ())

Settings = tuple[Any, dict[str, Any]]


def configurations() -> list[Settings]:
    """What torch tests its optimizers with, by each of their implementations."""
    found: list[Settings] = []
    for info in database.optim_db:
        if info.optim_cls.__name__ in UNSUPPORTED:
            continue
        kinds: list[dict[str, Any]] = [{}, *({kind: True} for kind in info.supported_impls)]
        for case in info.optim_inputs_func(device="cpu"):
            found += [(info.optim_cls, {**case.kwargs, **kind}) for kind in kinds]
    return found


CONFIGURATIONS = configurations()
LAST_OF_EACH = list({(cls, tuple(kw)[-1:]): (cls, kw) for cls, kw in CONFIGURATIONS}.values())
POPTORCH: list[Settings] = [
    (poptorch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "use_combined_accum": False}),
    (poptorch.optim.Adam, {"max_grad_norm": 1.0}),
    (poptorch.optim.AdamW, {"bias_correction": False, "weight_decay": 0.1}),
    (poptorch.optim.RMSprop, {"centered": True, "momentum": 0.9, "use_tf_variant": True}),
    (poptorch.optim.LAMB, {}),
    (poptorch.optim.LAMB, {"bias_correction": False, "weight_decay": 0.0}),
]


def describe(case: Settings) -> str:
    return f"{case[0].__name__}({', '.join(f'{k}={v}' for k, v in case[1].items())})"


def builder(case: Settings, dtype: torch.dtype) -> Callable[[], torch.optim.Optimizer]:
    """Makes that optimizer, with tensors of its own."""
    cls, settings = case
    shapes = SHAPES[:1] if cls is torch.optim.Muon else SHAPES

    def build() -> Any:
        own = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in settings.items()}
        return cls(parameters(shapes, dtype), **own)

    return build


def converted(program: Program) -> Program:
    """The program without numbers, checked."""
    after = numbers_as_tensors(program)
    verify(after)
    assert all(isinstance(entry.spec, TensorSpec) for entry in after.inputs)
    assert not any(callable_on_numbers(node.target) for node in after.graph.nodes)
    assert not after.guards
    assert numbers_as_tensors(after) is after
    return after


def callable_on_numbers(target: Any) -> bool:
    if target is aten._local_scalar_dense.default:
        return True
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.startswith(("aten::_fused", "aten::_foreach"))
    return callable(target) and target is not operator.getitem


@pytest.mark.parametrize("case", [*CONFIGURATIONS, *POPTORCH], ids=describe)
def test_three_steps_are_those_of_the_program_with_numbers(case: Settings) -> None:
    # Muon rounds to bfloat16 many times: one other last bit of float32 can flip a digit of it.
    tolerance = 1e-4 if case[0] is torch.optim.Muon else 1e-6

    compare_steps(builder(case, torch.float32), converted, steps=3, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "case", [c for c in LAST_OF_EACH if c[0] is not torch.optim.Muon], ids=describe
)
def test_numbers_are_as_precise_as_pythons(case: Settings) -> None:
    compare_steps(builder(case, torch.float64), converted, steps=3, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "settings", [{}, {"foreach": True}, {"fused": True}], ids=["plain", "foreach", "fused"]
)
def test_a_number_is_not_rounded_to_the_half_type_it_meets(settings: dict[str, Any]) -> None:
    # 0.999 is 1.0 in bfloat16: the second moment would never decay.
    build = builder((torch.optim.Adam, {"lr": 0.01, **settings}), torch.bfloat16)

    compare_steps(build, converted, steps=3, rtol=0.02, atol=1e-3)


def test_a_power_is_computed_once_and_kept() -> None:
    optimizer = torch.optim.Adam(parameters([(8, 8)], torch.float32), lr=0.1)
    compare_steps(lambda: optimizer, lambda program: program, steps=1, rtol=1, atol=1)

    program = converted(captured(optimizer).program)

    powers = [n for n in program.graph.nodes if "pow" in str(n.target)]
    assert len(powers) == 3
    assert all(node.meta["val"].shape == () for node in powers)
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dim() > 0 and node.op == "call_function":
            singles = [s for s in node.all_input_nodes if s.meta["val"].dim() == 0]
            assert all(s.target is aten.as_strided.default for s in singles)


def test_tags_stay_and_the_text_can_be_read_back() -> None:
    optimizer = torch.optim.Adam(parameters([(2,)], torch.float32), lr=0.1)

    program = converted(captured(optimizer).program)

    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    assert all(node.meta["tag"].phase == "update" for node in calls)
    assert equal(parse_program(print_program(program), constants_of(program)), program)


def test_a_fused_step_of_two_captures_is_converted() -> None:
    update = Builder("update")
    weight = update.input("fc.weight", (3, 2), InputKind.PARAMETER)
    grad = update.input("fc.weight", (3, 2), InputKind.GRADIENT)
    rate = update.call(operator.neg, update.hyper("lr"))
    update.write(weight, update.call(aten.add.Tensor, weight, grad, alpha=rate))
    fused = fuse(gradients(), update.finish())

    program = converted(fused)

    held = [torch.randn(3, 2), torch.zeros(()), torch.randn(4, 3)]
    twin = [tensor.clone() for tensor in held]
    ReferenceExecutable(fused).run([*held, 0.5])
    ReferenceExecutable(program).run([*twin, torch.tensor(0.5, dtype=torch.float64)])
    torch.testing.assert_close(twin, held)


def test_a_number_that_is_returned_becomes_a_tensor() -> None:
    build = Builder("update")
    build.returns("double", build.call(operator.mul, build.hyper("lr"), 2.0), OutputKind.OPTIMIZER)

    program = converted(build.finish())

    assert program.outputs[0].spec == TensorSpec((), torch.float64)
    (result,) = ReferenceExecutable(program).run([torch.tensor(0.3, dtype=torch.float64)])
    assert result.item() == 0.6


@pytest.mark.parametrize(
    ("function", "operands", "wanted"),
    [
        (operator.sub, (1.0, None), 0.75),
        (operator.truediv, (2.0, None), 8.0),
        (operator.pow, (None, 0.5), 0.5),
        (operator.pow, (16.0, None), 2.0),
        (min, (None, 0.125), 0.125),
        (max, (0.125, None), 0.25),
        (operator.neg, (None,), -0.25),
    ],
    ids=str,
)
def test_arithmetic_on_a_number_is_pythons(function: Any, operands: Any, wanted: float) -> None:
    build = Builder("update")
    number = build.hyper("x")
    result = build.call(function, *(number if o is None else o for o in operands))
    build.returns("y", result, OutputKind.OPTIMIZER)

    program = converted(build.finish())

    (got,) = ReferenceExecutable(program).run([torch.tensor(0.25, dtype=torch.float64)])
    assert got.item() == wanted


def test_guards_and_what_only_they_read_are_dropped() -> None:
    build = Builder("update")
    half = build.call(operator.mul, build.hyper("lr"), 0.5)
    build.guards.append(Guard(build.call(operator.gt, half, 0.0).name, True))

    program = converted(build.finish())

    assert [node.op for node in program.graph.nodes] == ["placeholder", "output"]


def test_a_program_without_numbers_stays_as_it_is() -> None:
    program = gradients()

    assert numbers_as_tensors(program) is program


def test_an_op_without_a_rule_is_named() -> None:
    build = Builder("update")
    build.returns("y", build.call(aten.celu.default, build.input("x", (3,)), build.hyper("alpha")))

    with pytest.raises(ProgramError, match=r"aten\.celu\.default") as caught:
        numbers_as_tensors(build.finish())

    assert caught.value.fix
    assert "reference" in caught.value.fix


def test_a_guard_that_is_used_as_a_value_is_refused() -> None:
    build = Builder("update")
    answer = build.call(operator.gt, build.hyper("lr"), 0.0)
    build.returns("y", build.call(aten.full.default, [2], answer))

    with pytest.raises(ProgramError, match="guard"):
        numbers_as_tensors(build.finish())
