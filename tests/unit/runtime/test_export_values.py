"""Values go to plain data and come back equal, with what was shared still shared."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import json
import math
import operator
import pathlib
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pantile.errors import StoreError
from pantile.runtime.export.decode import Reader
from pantile.runtime.export.encode import Writer
from pantile.runtime.export.paths import Paths


class Colour(enum.Enum):
    RED = "red"
    BLUE = (0, 0, 255)


class Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


Point = namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class Frozen:
    size: int
    names: tuple[str, ...] = ()


@dataclasses.dataclass(slots=True)
class Slotted:
    size: int
    next: object = None


class Config:
    """A plain object."""

    def __init__(self, **values: object) -> None:
        self.__dict__.update(values)


class Table(dict):
    """A dict with attributes."""


class Holder(nn.Module):
    """A module of this file, so that names from this file may be used."""

    def __init__(self, value: object = None) -> None:
        super().__init__()
        self.value = value

    def double(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class Double(torch.autograd.Function):
    """The way custom gradients are written: models keep `Double.apply`."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def there_and_back(value: object) -> object:
    """What a value becomes in a file and back, JSON included."""
    writer = Writer()
    data = writer.value(value, "value")
    writer.check(Holder)
    rows, stored = writer.tensors.finished()
    records, rows, data = json.loads(json.dumps([writer.records, rows, data]))
    copies = {name: tensor.clone() for name, tensor in stored.items()}
    return Reader(records, rows, copies, Paths([Holder])).value(data)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.frozensets(st.integers() | st.text())
    ),
    max_leaves=20,
)


@given(PLAIN)
def test_plain_values_come_back_equal_and_of_the_same_types(value: object) -> None:
    assert repr(there_and_back(value)) == repr(value) or there_and_back(value) == value


@pytest.mark.parametrize(
    "value",
    [
        math.inf,
        -0.0,
        5e-324,
        2**100,
        range(3, 9, 2),
        slice(1, None, 2),
        ...,
        bytearray(b"\x00\xff"),
        {1, 2},
        deque([1, 2], maxlen=5),
        OrderedDict(b=1, a=2),
        Counter("hello"),
        torch.float16,
        torch.strided,
        torch.channels_last,
        torch.device("cpu"),
        torch.Size([2, 3]),
        Colour.RED,
        Colour.BLUE,
        Bits.ONE | Bits.TWO,
        Point(1, (2, 3)),
        Frozen(3, ("a", "b")),
        Slotted(3, Slotted(4)),
        pathlib.Path("a/b.pt"),
        types.SimpleNamespace(a=1, b=[2]),
        argparse.Namespace(lr=0.1, layers=[1, 2]),
        np.float32(0.1),
    ],
    ids=repr,
)
def test_value_comes_back_equal(value: object) -> None:
    back = there_and_back(value)

    assert type(back) is type(value)
    assert back == value
    assert repr(back) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        int,
        dict,
        nn.Linear,
        Holder,
        Config,
        swish,
        F.relu,
        F.gelu,
        F.max_pool2d,
        F.cross_entropy,
        torch.relu,
        torch.Tensor.relu,
        torch.special.erf,
        torch.fft.fft,
        torch.linalg.norm,
        nn.init.zeros_,
        operator.add,
        math.sqrt,
    ],
    ids=lambda value: value.__qualname__,
)
def test_classes_and_functions_are_the_same_objects(value: object) -> None:
    assert there_and_back(value) is value


def test_not_a_number_stays_one() -> None:
    assert math.isnan(there_and_back(math.nan))


def test_default_factory_is_kept() -> None:
    value = defaultdict(list, a=[1])

    back = there_and_back(value)

    assert back == value
    assert back["b"] == []


def test_partial_keeps_function_and_arguments() -> None:
    back = there_and_back(functools.partial(nn.LayerNorm, 4, eps=1e-6))

    assert back.func is nn.LayerNorm
    assert (back.args, back.keywords) == ((4,), {"eps": 1e-6})


def test_object_comes_back_without_its_constructor() -> None:
    value = Config(width=3, inner=Config(act=swish))

    back = there_and_back(value)

    assert type(back) is Config
    assert back.width == 3
    assert back.inner.act is swish


def test_dict_subclass_keeps_items_and_attributes() -> None:
    value = Table(a=1)
    value.note = "kept"

    back = there_and_back(value)

    assert type(back) is Table
    assert (back, back.note) == ({"a": 1}, "kept")


def test_method_of_a_module_belongs_to_the_new_module() -> None:
    value = Holder()
    value.value = value.double

    back = there_and_back(value)

    assert back.value.__self__ is back
    assert torch.equal(back.value(torch.ones(2)), torch.full((2,), 2.0))


def test_method_of_a_class_comes_back() -> None:
    assert there_and_back(Double.apply)(torch.ones(2)).tolist() == [2.0, 2.0]


def test_what_was_shared_is_shared_and_what_was_equal_is_not() -> None:
    shared, equal = [1], [1]

    back = there_and_back([shared, shared, equal])

    assert back[0] is back[1]
    assert back[0] is not back[2]


def test_cycles_come_back() -> None:
    value: list[object] = [1]
    value.append({"self": value})

    back = there_and_back(value)

    assert back[1]["self"] is back


def test_nest_of_ten_thousand_lists_needs_no_deep_stack() -> None:
    value: list[object] = []
    for _ in range(10_000):
        value = [value]

    back = there_and_back(value)

    depth = 0
    while back:
        back, depth = back[0], depth + 1
    assert depth == 10_000


TENSORS = {
    "float32": torch.randn(3, 4),
    "bfloat16": torch.randn(5).bfloat16(),
    "bool": torch.tensor([True, False]),
    "complex": torch.randn(2, 2, dtype=torch.complex64),
    "conjugate": torch.randn(2, dtype=torch.complex64).conj(),
    "scalar": torch.tensor(3.5, dtype=torch.float64),
    "empty": torch.zeros(0, 3),
    "transposed": torch.randn(3, 4).t(),
    "channels last": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    "float8": torch.randn(4).to(torch.float8_e4m3fn),
    "uint16": torch.tensor([1, 60_000], dtype=torch.uint16),
}


@pytest.mark.parametrize("value", TENSORS.values(), ids=TENSORS)
def test_tensor_comes_back_bit_for_bit(value: torch.Tensor) -> None:
    back = there_and_back(value)

    assert (back.dtype, back.shape, back.stride()) == (value.dtype, value.shape, value.stride())
    assert torch.equal(back.contiguous().view(-1).view(torch.uint8), _bytes(value))
    assert back._base is None


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().contiguous().view(-1).view(torch.uint8)


def test_slice_of_a_large_tensor_takes_only_its_own_memory() -> None:
    value = torch.arange(1_000_000.0)[10:14]

    back = there_and_back(value)

    assert torch.equal(back, torch.tensor([10.0, 11, 12, 13]))
    assert back.untyped_storage().nbytes() == 16


def test_views_of_one_memory_stay_views_of_one_memory() -> None:
    whole = torch.zeros(4, dtype=torch.int32)

    base, half, other = there_and_back([whole, whole[2:], whole.view(torch.float32)[:2]])
    base += 1

    assert half.tolist() == [1, 1]
    assert other.view(torch.int32).tolist() == [1, 1]


def test_parameters_keep_class_flag_and_attributes() -> None:
    parameter = nn.Parameter(torch.ones(2), requires_grad=False)
    parameter.no_decay = True

    back = there_and_back(parameter)

    assert type(back) is nn.Parameter
    assert (back.requires_grad, back.no_decay) == (False, True)


def local_class() -> type:
    class Local:
        pass

    return Local


REFUSED = {
    "lambda": (lambda x: x, "<lambda>"),
    "object of a local class": (local_class()(), "Local"),
    "generator": (torch.Generator(), "torch.Generator"),
    "lock": (threading.Lock(), "lock"),
    "iterator": (iter([]), "list_iterator"),
    "module": (math, "module"),
    "meta tensor": (torch.zeros(2, device="meta"), "meta"),
    "sparse tensor": (torch.eye(2).to_sparse(), "sparse"),
    "lazy parameter": (nn.LazyLinear(2).weight, "no shape"),
    "function of another package": (json.dumps, "json"),
    "class of the standard library": (pathlib.PurePath, "pathlib"),
}


@pytest.mark.parametrize(("value", "words"), REFUSED.values(), ids=REFUSED)
def test_refusal_names_the_place_and_the_fix(value: object, words: str) -> None:
    with pytest.raises(StoreError, match=words) as caught:
        there_and_back({"a": [1, value]})

    assert "value['a'][1]" in caught.value.message
    assert caught.value.fix
