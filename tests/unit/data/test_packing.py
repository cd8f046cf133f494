"""Items as bytes in shared memory."""

from __future__ import annotations

import mmap

import pytest
import torch
from tests.unit.data.toy_datasets import Graph, GraphParser, Point

from pantile.data.packing import Packer, Unpacker
from pantile.errors import DataArgumentError, DataError
from pantile.program.structure import register_parser


def there_and_back(item, *, copy=True):
    packed = Packer().pack(item)
    memory = mmap.mmap(-1, 4096 + packed.size)
    packed.write(memory, 4096)
    return Unpacker().unpack(memory, 4096, copy=copy)


DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_arrives_bit_for_bit(dtype):
    sent = torch.randint(0, 2, (3, 5)).to(dtype)

    received = there_and_back(sent)

    assert received.dtype == dtype
    assert torch.equal(received.view(torch.uint8), sent.view(torch.uint8))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4)])
def test_every_shape_arrives(shape):
    sent = torch.rand(shape)

    assert torch.equal(there_and_back(sent), sent)


def test_memory_format_is_kept_and_gaps_are_not():
    image = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    column = torch.rand(4, 4)[:, 1]

    received_image, received_column = there_and_back((image, column))

    assert received_image.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(received_image, image)
    assert received_column.stride() == (1,)
    assert torch.equal(received_column, column)


def test_nested_items_keep_types_and_plain_values():
    sent = {"a": [torch.tensor(1), 2.5], "b": Point(torch.tensor([3]), "name"), "c": None}

    received = there_and_back(sent)

    assert received == sent


def test_expanded_conjugated_and_gradient_tensors_arrive_as_plain_values():
    sent = (
        torch.rand(3, 1).expand(3, 4),
        torch.rand(2, dtype=torch.complex64).conj(),
        torch.rand(2, requires_grad=True) * 2,
    )

    received = there_and_back(sent)

    assert all(torch.equal(a, b) for a, b in zip(received, sent, strict=True))
    assert not received[2].requires_grad


def test_a_type_of_the_user_does_not_drag_its_tensors_along_twice():
    register_parser(Graph, GraphParser())
    try:
        sent = Graph(torch.rand(1000, 100), torch.rand(10))

        packed = Packer().pack(sent)
        received = there_and_back(sent)
    finally:
        register_parser(Graph, None)

    assert packed.size < 1.05 * 4 * (1000 * 100 + 10)
    assert torch.equal(received.nodes, sent.nodes)


def test_tensors_lie_in_the_memory_only_without_a_copy():
    packed = Packer().pack(torch.zeros(4))
    memory = mmap.mmap(-1, packed.size)
    packed.write(memory, 0)
    own, lent = Unpacker().unpack(memory, 0, copy=True), Unpacker().unpack(memory, 0, copy=False)

    Packer().pack(torch.ones(4)).write(memory, 0)

    assert own.tolist() == [0, 0, 0, 0]
    assert lent.tolist() == [1, 1, 1, 1]


def test_sparse_tensors_are_refused_with_a_way_out():
    with pytest.raises(DataError, match="sparse") as caught:
        Packer().pack(torch.eye(2).to_sparse())

    assert "to_dense" in caught.value.fix


@pytest.mark.parametrize(
    "item",
    [torch.zeros(1), [torch.zeros(1)], (torch.zeros(1),) * 2, {"x": torch.zeros(1)}],
    ids=["tensor", "list", "tuple", "dict"],
)
def test_strict_mode_takes_flat_items(item):
    assert Packer(flat_only=True).pack(item).tensors


@pytest.mark.parametrize(
    "item",
    [3, "text", [[torch.zeros(1)]], {"x": (torch.zeros(1),)}, (torch.zeros(1), 1)],
    ids=["int", "str", "nested list", "nested dict", "constant"],
)
def test_strict_mode_refuses_other_items_as_poptorch_does(item):
    with pytest.raises(AssertionError) as caught:
        Packer(flat_only=True).pack(item)

    assert isinstance(caught.value, DataArgumentError)
    assert caught.value.fix
