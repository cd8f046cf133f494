"""A loaded executor is compiled for the calls the saved one was compiled for."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tests.unit.runtime.toy_models import Regression, options
from torch import nn

import poptorch
from pantile.errors import InputMismatch, StoreError


class Normalised(nn.Module):
    """Differs between training and evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.fc(x))


class Batch(NamedTuple):
    x: torch.Tensor
    extra: dict[str, torch.Tensor]


class Structured(nn.Module):
    """Takes nested arguments and constants."""

    def forward(self, batch: Batch, scale: float = 1.0, *, mode: str = "sum", flag: bool = False):
        total = batch.x + batch.extra["y"]
        result = {"sum": total, "x": batch.x}[mode] * scale
        return -result if flag else result


class Point:
    """A type of the user, with a parser."""

    def __init__(self, x: torch.Tensor, name: str) -> None:
        self.x, self.name = x, name


class PointParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.x

    def reconstruct(self, original_structure, tensor_iterator):
        return Point(next(tensor_iterator), original_structure.name)


class TakesPoint(nn.Module):
    def forward(self, point: Point) -> torch.Tensor:
        return point.x * (2 if point.name == "twice" else 1)


class PerReplica(nn.Module):
    """One row of the weight for each replica."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[1.0], [2.0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def test_every_signature_and_mode_comes_back_compiled(tmp_path: Path) -> None:
    model = Normalised()
    executor = poptorch.inferenceModel(model, options()).eval()
    executor(torch.randn(2, 3))
    executor(torch.randn(5, 3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        executor(torch.ones(2, 3))
    executor.train()
    executor(torch.randn(2, 3))
    executor.save(tmp_path / "file")

    loaded = poptorch.load(tmp_path / "file")

    assert len(loaded._compiled) == 4
    assert loaded.model.training
    model.eval()
    loaded.eval()
    assert torch.equal(loaded(torch.ones(5, 3)), model(torch.ones(5, 3)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loaded(torch.ones(2, 3)), model(torch.ones(2, 3)))
    assert len(loaded._compiled) == 4


def test_nested_arguments_and_constants_come_back(tmp_path: Path) -> None:
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    executor = poptorch.inferenceModel(Structured(), options().pinSignature())
    executor.compileAndExport(tmp_path / "file", Batch(x, {"y": y}), 2.5, mode="x", flag=True)

    loaded = poptorch.load(tmp_path / "file")

    assert torch.equal(loaded(Batch(x, {"y": y}), 2.5, mode="x", flag=True), -2.5 * x)
    with pytest.raises(InputMismatch, match="mode"):
        loaded(Batch(x, {"y": y}), 2.5, mode="sum", flag=True)


def test_tensor_that_was_passed_twice_is_one_tensor_again(tmp_path: Path) -> None:
    x = torch.randn(2, 3)
    executor = poptorch.inferenceModel(Structured(), options())
    executor.compileAndExport(tmp_path / "file", Batch(x, {"y": x}))

    loaded = poptorch.load(tmp_path / "file")

    assert torch.equal(loaded(Batch(x, {"y": x})), 2 * x)
    assert len(loaded._compiled) == 1


def test_type_with_a_parser_comes_back(tmp_path: Path) -> None:
    poptorch.registerCustomArgParser(Point, PointParser())
    try:
        x = torch.randn(2, 3)
        executor = poptorch.inferenceModel(TakesPoint(), options())
        executor.compileAndExport(tmp_path / "file", Point(x, "twice"))

        loaded = poptorch.load(tmp_path / "file")

        assert torch.equal(loaded(Point(x, "twice")), 2 * x)
    finally:
        poptorch.registerCustomArgParser(Point, None)


def test_data_of_the_arguments_is_not_in_the_file(tmp_path: Path) -> None:
    executor = poptorch.inferenceModel(Regression(), options())

    executor.compileAndExport(tmp_path / "file", torch.full((100_000, 3), 7.0))

    assert (tmp_path / "file").stat().st_size < 20_000


def test_argument_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    class Local:
        """A constant argument whose class no other process can import."""

    executor = poptorch.inferenceModel(Structured(), options())
    x = torch.randn(2, 3)
    executor.compile(Batch(x, {"y": x}), mode="x", flag=Local())

    with pytest.raises(StoreError, match=r"calls\[0\].*Local") as caught:
        executor.save(tmp_path / "file")

    assert "export_model" not in str(caught.value.fix)


def test_groups_of_replicas_come_back(tmp_path: Path) -> None:
    class_of_two = PerReplica()
    how = options(replicationFactor=2).outputMode(poptorch.OutputMode.All)
    executor = poptorch.inferenceModel(class_of_two, how)
    executor.weight.replicaGrouping(
        poptorch.CommGroupType.NoGrouping, 0, poptorch.VariableRetrievalMode.OnePerGroup
    )
    x = torch.ones(2, 3)
    expected = executor(x)
    executor.save(tmp_path / "file")

    loaded = poptorch.load(tmp_path / "file")

    assert torch.equal(loaded(x), expected)
    assert torch.equal(expected, torch.tensor([[1.0] * 3, [2.0] * 3]))
    assert loaded.per_replica_params == executor.per_replica_params
