"""Mistakes in the arguments of a call."""

from __future__ import annotations

import numpy as np
import torch
from tests.malformed.row import (
    Net,
    Row,
    Scaled,
    Sums,
    X,
    Y,
    infer,
    infer_with,
    options,
    strict,
    then,
    train,
)
from torch import nn

import poptorch
from pantile.errors import (
    ArgumentError,
    BatchError,
    CaptureError,
    ExecutionError,
    ForwardError,
    InputMismatch,
)

S = torch.randn(6, 8)


def scaled(*args: object, **kwargs: object) -> object:
    return poptorch.inferenceModel(Scaled())(*args, **kwargs)


def sums(first: object, second: object) -> object:
    executor = poptorch.inferenceModel(Sums(), strict())
    executor(first)
    return executor(second)


def quantised() -> torch.Tensor:
    return torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)


def twice(x: torch.Tensor) -> object:
    """A training executor that has run; `x` is its second batch."""
    executor = poptorch.trainingModel(Net())
    executor(X, Y)
    return executor(x, Y)


def iterations(n: int) -> poptorch.Options:
    return options().deviceIterations(n)


def frozen_twice(first: object, second: object) -> object:
    executor = poptorch.inferenceModel(Scaled(), strict())
    executor(X, S, shift=first)
    return executor(X, S, shift=second)


SHAPES = (
    Row("too wide", lambda: infer(torch.randn(6, 9)), lambda: infer(X),
        ForwardError, ("x: float32[6, 9]",), "shape", RuntimeError),
    Row("too wide in training", lambda: train(torch.randn(6, 9), Y), lambda: train(X, Y),
        ForwardError, ("x: float32[6, 9]",), "shape", RuntimeError),
    Row("too wide for a compiled model", lambda: twice(torch.randn(6, 9)), lambda: twice(X),
        ForwardError, ("x: float32[6, 9]",), "shape", RuntimeError),
    Row("too wide, strict", lambda: then(X, torch.randn(6, 9), strict()),
        lambda: then(X, X, strict()), InputMismatch,
        ("Shape mismatch for x: expected torch.Size([6, 8]) but got torch.Size([6, 9])",),
        "destroy()"),
    Row("another batch size, strict", lambda: then(X, X[:3], strict()), lambda: then(X, X[:3]),
        InputMismatch, ("Shape mismatch for x",), "destroy()"),
    Row("no rows", lambda: infer(X[:0]), lambda: infer(X[:1]),
        BatchError, ("'x'", "empty"), "drop_last"),
    Row("no rows in training", lambda: train(X[:0], Y[:0]), lambda: train(X[:2], Y[:2]),
        BatchError, ("'x'", "empty"), "drop_last"),
    Row("no columns", lambda: infer(X[:, :0]), lambda: infer(X),
        ForwardError, ("x: float32[6, 0]",), "shape", RuntimeError),
    Row("a vector too short", lambda: infer(torch.randn(5)), lambda: infer(torch.randn(8)),
        ForwardError, ("x: float32[5]",), "shape", RuntimeError),
    Row("as many labels as half the batch", lambda: train(X, Y[:3]), lambda: train(X[:3], Y[:3]),
        ForwardError, ("x: float32[6, 8]", "labels: int64[3]", "batch"), "shape", ValueError),
    Row("rows not divisible by device iterations", lambda: infer_with(iterations(4), X),
        lambda: infer_with(iterations(4), X.repeat(2, 1)),
        BatchError, ("'x'", "deviceIterations (4)", "Invalid batch dimension"), "multiple of 4",
        AssertionError),
    Row("rows not divisible by replicas", lambda: infer_with(options().replicationFactor(4), X),
        lambda: infer_with(options().replicationFactor(4), X[:4]),
        BatchError, ("'x'", "replicationFactor (4)"), "multiple of 4", AssertionError),
    Row("rows not divisible by accumulation",
        lambda: poptorch.trainingModel(Net(), accumulating(4))(X, Y),
        lambda: poptorch.trainingModel(Net(), accumulating(3))(X, Y),
        BatchError, ("'x'", "gradientAccumulation (4)"), "multiple of 4", AssertionError),
    Row("only the labels not divisible",
        lambda: poptorch.trainingModel(Net(), accumulating(3))(X, Y[:4]),
        lambda: poptorch.trainingModel(Net(), accumulating(3))(X, Y),
        BatchError, ("'labels'",), "multiple of 3", AssertionError),
    Row("a scalar with device iterations", lambda: poptorch.inferenceModel(
            Scaled(), iterations(2))(X, torch.tensor(2.0)),
        lambda: poptorch.inferenceModel(Scaled(), iterations(2))(X, torch.full((2,), 2.0)),
        BatchError, ("'scale'",), "multiple of 2", AssertionError),
    Row("another dtype, strict", lambda: then(X, X.long(), strict()),
        lambda: then(X, X.long().float(), strict()), InputMismatch,
        ("Data type mismatch for x: expected torch.float32 but got torch.int64",), "destroy()"),
)  # fmt: skip


def accumulating(n: int) -> poptorch.Options:
    chosen = options()
    chosen.Training.gradientAccumulation(n)
    return chosen


DTYPES = (
    Row("double numbers", lambda: infer(X.double()), lambda: infer(X.double().float()),
        ExecutionError, ("x: float64[6, 8]",), "x.float()", RuntimeError),
    Row("integers", lambda: infer(X.long()), lambda: infer(X.long().float()),
        ExecutionError, ("x: int64[6, 8]",), "x.float()", RuntimeError),
    Row("complex numbers", lambda: infer(X.to(torch.complex64)),
        lambda: infer(X.to(torch.complex64).real), ExecutionError, ("x: complex64[6, 8]",),
        "x.real", RuntimeError),
    Row("bytes", lambda: infer(X.to(torch.uint8)), lambda: infer(X.to(torch.uint8).float()),
        ExecutionError, ("x: uint8[6, 8]",), "x.float()", RuntimeError),
    Row("truth values", lambda: infer(X > 0), lambda: infer((X > 0).float()),
        ExecutionError, ("x: bool[6, 8]",), "x.float()", RuntimeError),
    Row("float labels", lambda: train(X, Y.float()), lambda: train(X, Y.float().long()),
        ForwardError, ("labels: float32[6]",), "labels.long()", RuntimeError),
    Row("float indices", lambda: poptorch.inferenceModel(nn.Embedding(4, 2))(Y.float()),
        lambda: poptorch.inferenceModel(nn.Embedding(4, 2))(Y), ForwardError,
        ("input: float32[6]",), "input.long()", RuntimeError),
)  # fmt: skip

KINDS = (
    Row("None", lambda: infer(None), lambda: infer(X),
        ForwardError, ("x: None",), "torch.as_tensor", TypeError),
    Row("a list of numbers", lambda: infer([1.0] * 8), lambda: infer(torch.as_tensor([1.0] * 8)),
        ForwardError, ("x: list",), "torch.as_tensor", TypeError),
    Row("a string", lambda: infer("image.png"), lambda: infer(X),
        ForwardError, ("x: str",), "torch.as_tensor", TypeError),
    Row("a number", lambda: infer(3.0), lambda: infer(torch.full((8,), 3.0)),
        ForwardError, ("x: float",), "torch.as_tensor", TypeError),
    Row("a generator", lambda: infer(row for row in X), lambda: infer(torch.stack(list(X))),
        ForwardError, ("x: generator",), "torch.as_tensor", TypeError),
    Row("a NumPy array", lambda: infer(X.numpy()), lambda: infer(torch.as_tensor(X.numpy())),
        InputMismatch, ("'x'", "NumPy"), "torch.as_tensor(x)"),
    Row("a NumPy number", lambda: infer(np.float32(3)),
        lambda: infer(torch.as_tensor(np.full(8, 3, np.float32))),
        InputMismatch, ("'x'", "NumPy"), "torch.as_tensor(x)"),
    Row("a NumPy array inside a list", lambda: poptorch.inferenceModel(Sums())([X, X.numpy()]),
        lambda: poptorch.inferenceModel(Sums())([X, torch.as_tensor(X.numpy())]),
        InputMismatch, ("'batch'", "NumPy"), "torch.as_tensor"),
    Row("a meta tensor", lambda: infer(X.to("meta")), lambda: infer(torch.zeros_like(X)),
        InputMismatch, ("'x'", "meta"), "device='cpu'"),
    Row("a sparse tensor", lambda: infer(X.to_sparse()), lambda: infer(X.to_sparse().to_dense()),
        InputMismatch, ("'x'", "sparse"), "x.to_dense()"),
    Row("a compressed sparse tensor", lambda: infer(X.to_sparse_csr()), lambda: infer(X),
        InputMismatch, ("'x'", "sparse"), "x.to_dense()"),
    Row("a quantised tensor", lambda: infer(quantised()), lambda: infer(quantised().dequantize()),
        InputMismatch, ("'x'", "quantised"), "x.dequantize()"),
    Row("a nested tensor",
        lambda: infer(torch.nested.nested_tensor([X[:2], X[2:]], layout=torch.jagged)),
        lambda: infer(X), InputMismatch, ("'x'",), "to_padded_tensor"),
    Row("a tensor for a mode", lambda: poptorch.trainingModel(Net())(X), lambda: train(X, Y),
        CaptureError, ("find a loss",), "identity_loss"),
)  # fmt: skip

VALUES = (
    Row("a label that is too large", lambda: train(X, Y + 1), lambda: train(X, (Y + 1) % 4),
        ExecutionError, ("labels: int64[6]", "out of bounds"), "0 to C-1", IndexError),
    Row("a negative label", lambda: train(X, Y - 1), lambda: train(X, (Y - 1).clamp(min=0)),
        ExecutionError, ("labels: int64[6]", "out of bounds"), "ignore_index", IndexError),
    Row("an index outside the table",
        lambda: poptorch.inferenceModel(nn.Embedding(4, 2))(torch.tensor([9])),
        lambda: poptorch.inferenceModel(nn.Embedding(4, 2))(torch.tensor([3])),
        ExecutionError, ("input: int64[1]", "out of range"), "range", IndexError),
)  # fmt: skip

BINDING = (
    Row("no argument", lambda: infer(), lambda: infer(X),
        InputMismatch, ("Mandatory parameter x missing",), "x"),
    Row("one argument of two", lambda: scaled(X), lambda: scaled(X, S),
        InputMismatch, ("Mandatory parameter scale missing",), "scale"),
    Row("the first of two missing", lambda: scaled(scale=S), lambda: scaled(scale=S, x=X),
        InputMismatch, ("Mandatory parameter x missing",), "x"),
    Row("too many arguments", lambda: infer(X, Y, X), lambda: infer(X, Y),
        ArgumentError, ("too many positional arguments",), "forward(x", AssertionError),
    Row("a keyword as a position", lambda: scaled(X, S, 2.0), lambda: scaled(X, S, shift=2.0),
        ArgumentError, ("too many positional arguments",), "shift", AssertionError),
    Row("an unknown keyword", lambda: infer(X, label=Y), lambda: infer(X, labels=Y),
        ArgumentError, ("'label'",), "labels", AssertionError),
    Row("an argument given twice", lambda: infer(X, x=X), lambda: infer(x=X),
        ArgumentError, ("'x'", "multiple values"), "forward(x", AssertionError),
)  # fmt: skip

PINNED = (
    Row("a Python value changed, strict", lambda: frozen_twice(5, 3), lambda: frozen_twice(5, 5),
        InputMismatch, ("Value mismatch for shift: expected 5 but got 3",), "destroy()"),
    Row("a Python type changed, strict", lambda: frozen_twice(5, 5.0), lambda: frozen_twice(5, 5),
        InputMismatch, ("Type mismatch for shift",), "destroy()"),
    Row("a dict with other keys, strict", lambda: sums({"a": X, "b": X}, {"a": X, "z": X}),
        lambda: sums({"a": X, "b": X}, {"b": X, "a": X}), InputMismatch,
        ("Keys mismatch for batch", "Unexpected arguments: z", "Missing arguments: b"),
        "destroy()"),
    Row("a longer tuple, strict", lambda: sums((X, X), (X, X, X)), lambda: sums((X, X), (X, S)),
        InputMismatch, ("Length mismatch for batch",), "destroy()"),
    Row("a shorter list, strict", lambda: sums([X, X], [X]), lambda: sums([X, X], [X, S]),
        InputMismatch, ("Length mismatch for batch",), "destroy()"),
    Row("a list for a tuple, strict", lambda: sums((X, X), [X, X]), lambda: sums((X,), (X,)),
        InputMismatch, ("Type mismatch for batch",), "destroy()"),
    Row("None for a tensor, strict", lambda: then(X, None, strict()), lambda: then(X, X, strict()),
        InputMismatch, ("Type mismatch for x",), "destroy()"),
)  # fmt: skip

ROWS = (*SHAPES, *DTYPES, *KINDS, *VALUES, *BINDING, *PINNED)
