"""Tensors come back bit for bit, with the same dtype, shape and strides."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from pantile.errors import DamagedFile, StoreError
from pantile.store.container import Container, pack, unpack
from pantile.store.tensors import DTYPES, pack_tensors, unpack_tensors


def through_a_container(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    header, sections = pack_tensors(tensors)
    read = unpack(pack(Container("tensors", header, sections)), "tensors", "memory")
    return unpack_tensors(read.header, read.sections)


def random_bits(count: int, dtype: torch.dtype) -> Tensor:
    values = 2 if dtype == torch.bool else 256
    return torch.randint(0, values, (count * dtype.itemsize,), dtype=torch.uint8).view(dtype)


def bits(tensor: Tensor) -> list[int]:
    """The bytes of all elements in the order of their indices."""
    width = tensor.element_size()
    memory = bytes(tensor.untyped_storage())
    found: list[int] = []
    for flat in range(tensor.numel()):
        offset, rest = tensor.storage_offset(), flat
        for size, step in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
            rest, index = divmod(rest, size)
            offset += index * step
        found += memory[offset * width : (offset + 1) * width]
    return found


def assert_same(got: Tensor, want: Tensor) -> None:
    assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
    assert bits(got) == bits(want)


LAYOUTS = {
    "dense": ((2, 3), (3, 1)),
    "transposed": ((2, 3), (1, 2)),
    "with gaps": ((2, 3), (12, 4)),
    "expanded": ((4, 3, 2), (0, 2, 0)),
    "overlapping": ((4, 4), (2, 1)),
    "of no dimension": ((), ()),
    "of one element and odd strides": ((1, 1), (7, 3)),
    "empty": ((0,), (1,)),
    "empty with shape": ((3, 0, 2), (1, 5, 9)),
    "channels last": ((1, 3, 2, 2), (12, 1, 6, 3)),
}


@pytest.mark.parametrize(("shape", "stride"), LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_in_every_layout(
    name: str, shape: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    want = random_bits(30, DTYPES[name]).as_strided(shape, stride, 2)

    got = through_a_container({"x": want})["x"]

    assert_same(got, want)


def test_every_dtype_of_torch_is_known_but_the_quantised_ones() -> None:
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    quantised = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}

    assert set(DTYPES.values()) == every - quantised


@given(
    st.lists(
        st.tuples(st.integers(min_value=0, max_value=4), st.integers(min_value=0, max_value=9)),
        max_size=4,
    )
)
def test_every_shape_and_stride(dims: list[tuple[int, int]]) -> None:
    shape, stride = [size for size, _ in dims], [step for _, step in dims]
    want = torch.arange(200, dtype=torch.float32).as_strided(shape, stride, 5)

    assert_same(through_a_container({"x": want})["x"], want)


def test_values_that_compare_oddly_keep_their_bits() -> None:
    odd = torch.tensor([math.nan, -math.nan, -0.0, math.inf, 1e-45])
    payload = torch.tensor([0x7F800001, -1], dtype=torch.int32).view(torch.float32)

    got = through_a_container({"odd": odd, "payload": payload})

    assert_same(got["odd"], odd)
    assert_same(got["payload"], payload)


def test_lazy_conjugates_and_negatives_are_stored_as_their_values() -> None:
    numbers = torch.tensor([1 + 2j, 3 - 4j])

    got = through_a_container({"conj": numbers.conj(), "neg": numbers.conj().imag})

    assert got["conj"].tolist() == [1 - 2j, 3 + 4j]
    assert got["neg"].tolist() == [-2.0, 4.0]


def test_parameters_are_stored_as_plain_tensors() -> None:
    layer = nn.Linear(2, 3)

    got = through_a_container(dict(layer.named_parameters()))

    assert list(got) == ["weight", "bias"]
    assert not got["weight"].requires_grad
    assert torch.equal(got["weight"], layer.weight.detach())


def test_packing_takes_a_snapshot() -> None:
    tensor = torch.ones(4)
    header, sections = pack_tensors({"x": tensor})

    tensor.zero_()

    assert unpack_tensors(header, sections)["x"].tolist() == [1, 1, 1, 1]


def test_the_gaps_of_a_slice_do_not_reach_the_file() -> None:
    secret = torch.full((10,), 7, dtype=torch.uint8)

    _, sections = pack_tensors({"x": secret[::3]})

    assert bytes(sections["tensor:0"]) == bytes([7, 0, 0, 7, 0, 0, 7, 0, 0, 7])


def test_tensors_come_back_writable_and_apart() -> None:
    shared = torch.zeros(3)

    got = through_a_container({"a": shared, "b": shared})
    got["a"].add_(1)

    assert got["b"].tolist() == [0, 0, 0]


def test_two_sets_of_tensors_fit_one_container() -> None:
    one, two = torch.ones(1), torch.full((1,), 2.0)
    first, sections = pack_tensors({"x": one}, prefix="weights")
    second, more = pack_tensors({"x": two}, prefix="optimizer")
    together = sections | more

    assert unpack_tensors(first, together)["x"].item() == 1
    assert unpack_tensors(second, together)["x"].item() == 2


REFUSED = {
    "sparse": lambda: torch.ones(2, 2).to_sparse(),
    "meta": lambda: torch.ones(2, device="meta"),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "not a tensor": lambda: [1.0, 2.0],
    "a subclass": lambda: torch.masked.MaskedTensor(torch.ones(1), torch.ones(1).bool()),
    "not initialised": lambda: nn.LazyLinear(2).weight,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_plain_memory_is_refused_by_name(make) -> None:
    with pytest.raises(StoreError, match=r"'layer\.weight'"):
        pack_tensors({"layer.weight": make()})


GOOD = {"dtype": "float32", "shape": [2, 3], "stride": [3, 1], "section": "s"}
DAMAGED = {
    "a negative size": {"shape": [-2, -3]},
    "a negative stride": {"stride": [-3, 1]},
    "a size of 2^63": {"shape": [2**63, 1], "stride": [0, 0]},
    "more elements than 64 bits count": {"shape": [2**40, 2**40], "stride": [0, 0]},
    "an empty tensor of a huge shape": {"shape": [0, 2**61, 2**61], "stride": [1, 1, 1]},
    "a size that is a fraction": {"shape": [2.0, 3]},
    "a size that is true": {"shape": [True, 3]},
    "more sizes than strides": {"stride": [1]},
    "too many dimensions": {"shape": [1] * 100, "stride": [1] * 100},
    "a stride beyond the bytes": {"stride": [4, 1]},
    "fewer elements than bytes": {"shape": [1, 3]},
    "an unknown dtype": {"dtype": "float31"},
    "a dtype that is another attribute": {"dtype": "nn"},
    "a quantised dtype": {"dtype": "qint8"},
    "a missing section": {"section": "t"},
    "a section that is a number": {"section": 0},
    "a shape that is a string": {"shape": "23"},
    "booleans beyond 1": {"dtype": "bool", "shape": [24], "stride": [1], "section": "twos"},
}


@pytest.mark.parametrize("change", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_record_that_does_not_fit_is_refused(change) -> None:
    sections = {"s": memoryview(bytes(24)), "twos": memoryview(b"\x02" * 24)}

    with pytest.raises(DamagedFile, match="the file is damaged: tensor 'x'"):
        unpack_tensors({"x": GOOD | change}, sections, source="the file")


@pytest.mark.parametrize("record", [None, [], "float32", {"dtype": "float32"}])
def test_a_record_that_is_something_else_is_refused(record: object) -> None:
    with pytest.raises(DamagedFile, match="'x'"):
        unpack_tensors({"x": record}, {})
