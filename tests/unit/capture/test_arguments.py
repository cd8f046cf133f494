"""What goes into and comes out of a captured forward: containers, keywords, dtypes."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils._pytree as pytree
from tests.unit.capture.against_eager import infers_like_eager, same_bits, trains_like_eager
from torch import Tensor, nn

import poptorch


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@dataclass
class Sample:
    image: Tensor
    weight: float
    extra: dict[str, Tensor]


pytree.register_dataclass(Sample)


class Echo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(()))

    def forward(self, value: Any) -> Any:
        return pytree.tree_map_only(Tensor, lambda t: t * self.w + 1, value)


NESTED = {
    "tuple": (torch.randn(2), torch.randn(2)),
    "list in dict": {"a": [torch.randn(2), torch.randn(2)], "b": torch.randn(2)},
    "ordered dict": OrderedDict(b=torch.randn(2), a=torch.randn(2)),
    "named tuple": Pair(torch.randn(2), torch.randn(2)),
    "named tuple in a list": [Pair(torch.randn(2), torch.randn(2))],
    "dataclass": Sample(torch.randn(2), 0.5, {"x": torch.randn(2)}),
    "constants between tensors": (torch.randn(2), None, "name", 3, {"k": torch.randn(2), "n": 1.5}),
    "empty containers": (torch.randn(2), [], {}, ()),
    "deep": {"a": ({"b": [(torch.randn(2),)]},)},
    "integer keys": {0: torch.randn(2), 1: torch.randn(2)},
}


@pytest.mark.parametrize("kind", NESTED)
def test_nested_values_go_in_and_come_out_in_the_same_shape(kind: str) -> None:
    infers_like_eager(Echo(), (NESTED[kind],))


class Interval:
    def __init__(self, low: Tensor, high: Tensor) -> None:
        self.low, self.high = low, high


class IntervalParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct: Interval) -> Iterator[Tensor]:
        yield struct.low
        yield struct.high

    def reconstruct(
        self, original_structure: Interval, tensor_iterator: Iterator[Tensor]
    ) -> Interval:
        return Interval(next(tensor_iterator), next(tensor_iterator))


@pytest.fixture
def interval_parser() -> Iterator[None]:
    poptorch.registerCustomArgParser(Interval, IntervalParser())
    yield
    poptorch.registerCustomArgParser(Interval, None)


@pytest.mark.usefixtures("interval_parser")
def test_values_of_a_registered_type_go_in_and_come_out() -> None:
    class Widen(nn.Module):
        def forward(self, value: Interval, by: float) -> dict[str, Interval]:
            return {"wide": Interval(value.low - by, value.high + by)}

    result = poptorch.inferenceModel(Widen())(Interval(torch.ones(2), torch.ones(2) * 2), 0.5)

    assert isinstance(result["wide"], Interval)
    assert result["wide"].low.tolist() == [0.5, 0.5]
    assert result["wide"].high.tolist() == [2.5, 2.5]


def test_an_argument_written_in_place_inside_a_container_reaches_the_caller() -> None:
    class Increment(nn.Module):
        def forward(self, batch: dict[str, Any]) -> None:
            batch["a"] += 1
            batch["more"][0].mul_(3)

    batch = {"a": torch.zeros(2), "more": [torch.ones(2).t()]}
    assert poptorch.inferenceModel(Increment())(batch) is None

    assert batch["a"].tolist() == [1.0, 1.0]
    assert batch["more"][0].tolist() == [3.0, 3.0]


def test_keywords_defaults_and_positions_mean_the_same() -> None:
    class Affine(nn.Module):
        def forward(self, x: Tensor, scale: Tensor, *, shift: float = 2.0) -> Tensor:
            return x * scale + shift

    x, s = torch.randn(3), torch.randn(3)
    executor = poptorch.inferenceModel(Affine())

    assert torch.equal(executor(x, s), x * s + 2.0)
    assert torch.equal(executor(scale=s, x=x), x * s + 2.0)
    assert torch.equal(executor(x, scale=s, shift=5.0), x * s + 5.0)


def test_variadic_arguments_reach_forward() -> None:
    class Sum(nn.Module):
        def forward(self, *terms: Tensor, **named: Tensor) -> Tensor:
            return sum(terms) * named["by"]  # type: ignore[return-value]

    a, b, c = torch.randn(3, 2).unbind(0)

    assert torch.equal(poptorch.inferenceModel(Sum())(a, b, by=c), (a + b) * c)


DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_keeps_its_values_and_its_type(dtype: torch.dtype) -> None:
    class Arithmetic(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            twice = x | x if x.dtype is torch.bool else x + x
            return x, twice, x.to(torch.complex64).real, x.sum(), x.t()

    values = torch.tensor([[0, 1, 2], [3, 1, 0]]).to(dtype)

    infers_like_eager(Arithmetic(), (values,))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64], ids=str
)
def test_models_of_every_float_type_train(dtype: torch.dtype) -> None:
    class Project(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, 2, dtype=dtype))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.w).abs().square().mean()

    trains_like_eager(Project(), (torch.randn(4, 3).to(dtype),))


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Linear(3, 3, dtype=torch.bfloat16)
        self.full = nn.Linear(3, 2)

    def forward(self, x: Tensor, mask: Tensor, ids: Tensor) -> Tensor:
        h = self.narrow(x.bfloat16()).float().masked_fill(mask, 0.0)
        return self.full(h)[ids].square().mean()


def test_a_model_of_mixed_dtypes_with_masks_and_indices_trains() -> None:
    batch = (torch.randn(4, 3), torch.rand(4, 3) > 0.5, torch.tensor([0, 2, 2], dtype=torch.int32))

    trains_like_eager(Mixed(), batch)


class Returning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))
        self.register_buffer("b", torch.zeros(2))

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        y = x * self.w
        return x, y, y, y[0], self.w, self.b, None, torch.arange(3), "text", x.shape


def test_inputs_state_and_constants_can_be_returned_and_are_the_callers_own() -> None:
    executor = poptorch.inferenceModel(Returning())
    x = torch.randn(2)

    first = executor(x)
    for tensor in first:
        if isinstance(tensor, Tensor):
            tensor.detach().fill_(9)
    second = executor(x)

    expected = Returning()(x)
    assert torch.equal(x, torch.full((2,), 9.0)) is False
    assert same_bits(second, expected)


@pytest.mark.parametrize("x", [torch.randn(3, 4).t(), torch.randn(1, 3).expand(4, 3)])
def test_a_strided_input_gives_the_numbers_of_its_contiguous_copy(x: Tensor) -> None:
    layer = nn.Linear(3, 2)

    assert torch.equal(poptorch.inferenceModel(layer)(x), layer(x.contiguous()))


def test_the_same_tensor_can_be_passed_twice() -> None:
    class Difference(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return a - 2 * b

    x = torch.randn(3)

    assert torch.equal(poptorch.inferenceModel(Difference())(x, x), -x)


def test_a_model_without_an_op_returns_constants() -> None:
    class Constant(nn.Module):
        def forward(self) -> dict[str, Any]:
            return {"t": torch.tensor([1, 2]), "n": 3}

    result = poptorch.inferenceModel(Constant())()

    assert result["n"] == 3
    assert result["t"].tolist() == [1, 2]


def test_arguments_that_were_left_out_are_left_out_when_forward_is_recorded():
    def with_cache(forward):
        @functools.wraps(forward)
        def decorated(self, *args, **kwargs):
            kwargs["cache"] = kwargs.get("cache") or 3
            return forward(self, *args, **kwargs)

        return decorated

    class Decorated(nn.Module):
        @with_cache
        def forward(self, x, scale=None, cache=None):
            return x * cache if scale is None else x * scale * cache

    x = torch.ones(2)
    executor = poptorch.inferenceModel(Decorated(), poptorch.Options().engine("reference"))

    assert torch.equal(executor(x), x * 3)
    assert torch.equal(executor(x, torch.full((2,), 2.0)), x * 6)
