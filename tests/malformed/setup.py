"""Mistakes made before a call: models, options, optimizers, the order of calls, data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tests.malformed.row import Net, Row, X, Y, infer_with, options, train_with
from torch import nn

import poptorch
from pantile.errors import (
    AlreadyWrapped,
    CaptureError,
    DataError,
    Error,
    ForeignParameter,
    FrozenOptions,
    OfflineError,
    OptimizerError,
    OptionError,
    OptionTypeError,
    StateError,
    UnknownKeyword,
    UnknownOption,
)

SGD = torch.optim.SGD
NAN = float("nan")


def wrap_twice(destroy: bool) -> Any:
    model = Net()
    first = poptorch.trainingModel(model)
    if destroy:
        first.destroy()
    return poptorch.trainingModel(model)(X, Y)


def parameter_as_buffer(plain: bool) -> Any:
    model = Net()
    value = torch.zeros(2)
    model.register_buffer("b", value if plain else nn.Parameter(value))
    return poptorch.trainingModel(model)(X, Y)


def lazy(initialised: bool) -> Any:
    model = nn.LazyLinear(4)
    if initialised:
        model(X)
    return poptorch.inferenceModel(model)(X)


def sparse_buffer(dense: bool) -> Any:
    model = Net()
    buffer = torch.eye(3).to_sparse()
    model.register_buffer("b", buffer.to_dense() if dense else buffer)
    return poptorch.inferenceModel(model)(X)


def on_meta(real: bool) -> Any:
    model = Net() if real else Net().to("meta")
    return poptorch.inferenceModel(model)(X)


def accumulate_in_inference(n: int) -> Any:
    chosen = options()
    chosen.Training.gradientAccumulation(n)
    return infer_with(chosen, X)


MODELS = (
    Row("a function for a model", lambda: poptorch.inferenceModel(torch.relu),
        lambda: poptorch.inferenceModel(nn.ReLU())(X), Error, ("model is a",), "Module"),
    Row("a model class for a model", lambda: poptorch.trainingModel(Net),
        lambda: poptorch.trainingModel(Net())(X, Y), Error, ("model is a type",), "Module"),
    Row("an optimizer for the options",
        lambda: poptorch.trainingModel((m := Net()), SGD(m.parameters(), lr=0.1)),
        lambda: poptorch.trainingModel((m := Net()), None, SGD(m.parameters(), lr=0.1))(X, Y),
        OptionTypeError, ("options is a SGD",), "poptorch.Options()"),
    Row("a dict for the options", lambda: poptorch.inferenceModel(Net(), {"deviceIterations": 2}),
        lambda: infer_with(options().deviceIterations(2), X), OptionTypeError,
        ("options is a dict",), "poptorch.Options()"),
    Row("a model wrapped twice", lambda: wrap_twice(False), lambda: wrap_twice(True),
        AlreadyWrapped, ("already been wrapped",), "destroy()", RuntimeError),
    Row("a Parameter as a buffer", lambda: parameter_as_buffer(False),
        lambda: parameter_as_buffer(True), Error, ("'b'",), "buffer"),
    Row("a lazy layer", lambda: lazy(False), lambda: lazy(True),
        CaptureError, ("'weight'", "lazy"), "once on the CPU"),
    Row("a sparse buffer", lambda: sparse_buffer(False), lambda: sparse_buffer(True),
        CaptureError, ("buffer 'b'", "sparse"), ".to_dense()"),
    Row("a model on the meta device", lambda: on_meta(False), lambda: on_meta(True),
        CaptureError, ("'fc.weight'", "meta"), "to_empty"),
    Row("gradient accumulation in inference", lambda: accumulate_in_inference(2),
        lambda: accumulate_in_inference(1), Error, ("gradientAccumulation",), "1"),
)  # fmt: skip


def option(set_it: Callable[[poptorch.Options], Any]) -> Any:
    """Set an option, then run with it."""
    chosen = options()
    set_it(chosen)
    return infer_with(chosen, X)


def training_option(set_it: Callable[[Any], Any]) -> Any:
    chosen = options()
    set_it(chosen.Training)
    return poptorch.trainingModel(Net(), chosen)(X, Y)


def after_wrapping(clone: bool) -> Any:
    chosen = options()
    executor = poptorch.inferenceModel(Net(), chosen)
    executor(X)
    return (chosen.clone() if clone else chosen).deviceIterations(2)


OPTIONS = (
    Row("an unknown option", lambda: option(lambda o: setattr(o, "deviceIteration", 2)),
        lambda: option(lambda o: o.deviceIterations(2)),
        UnknownOption, ("deviceIteration",), "deviceIterations", AttributeError),
    Row("an unknown keyword of set", lambda: option(lambda o: o.set(device_iteration=2)),
        lambda: option(lambda o: o.set(device_iterations=2)),
        UnknownKeyword, ("device_iteration",), "device_iterations", AssertionError),
    Row("no device iterations", lambda: option(lambda o: o.deviceIterations(0)),
        lambda: option(lambda o: o.deviceIterations(1)),
        OptionError, ("deviceIterations",), "1", ValueError),
    Row("half a device iteration", lambda: option(lambda o: o.deviceIterations(1.5)),
        lambda: option(lambda o: o.deviceIterations(1)),
        OptionError, ("deviceIterations takes an int", "1.5"), "deviceIterations(1)", ValueError),
    Row("device iterations as text", lambda: option(lambda o: o.deviceIterations("2")),
        lambda: option(lambda o: o.deviceIterations(2)),
        OptionError, ("deviceIterations takes an int",), "deviceIterations(2)", ValueError),
    Row("NaN device iterations", lambda: option(lambda o: o.deviceIterations(NAN)),
        lambda: option(lambda o: o.deviceIterations(2)),
        OptionError, ("deviceIterations takes an int", "nan"), "deviceIterations(1)", ValueError),
    Row("a truth value for a number", lambda: option(lambda o: o.replicationFactor(True)),
        lambda: option(lambda o: o.replicationFactor(1)),
        OptionError, ("replicationFactor takes an int",), "replicationFactor(1)", ValueError),
    Row("negative replicas", lambda: option(lambda o: o.replicationFactor(-1)),
        lambda: option(lambda o: o.replicationFactor(2)),
        OptionError, ("replicationFactor", "-1"), "1", ValueError),
    Row("no accumulation", lambda: training_option(lambda t: t.gradientAccumulation(0)),
        lambda: training_option(lambda t: t.gradientAccumulation(1)),
        OptionError, ("gradientAccumulation",), "1", ValueError),
    Row("a seed that is no integer", lambda: option(lambda o: o.randomSeed("seven")),
        lambda: option(lambda o: o.randomSeed(7)),
        OptionError, ("randomSeed takes an int",), "randomSeed(1)", ValueError),
    Row("an output mode as text", lambda: option(lambda o: o.outputMode("All")),
        lambda: option(lambda o: o.outputMode(poptorch.OutputMode.All)),
        OptionTypeError, ("outputMode",), "OutputMode", AssertionError),
    Row("a period missing", lambda: option(lambda o: o.outputMode(poptorch.OutputMode.EveryN)),
        lambda: option(lambda o: o.deviceIterations(2).outputMode(poptorch.OutputMode.EveryN, 2)),
        OptionError, ("outputMode", "EveryN needs a positive period"), "EveryN", AssertionError),
    Row("a reduction as text",
        lambda: training_option(lambda t: t.accumulationAndReplicationReductionType("Mean")),
        lambda: training_option(lambda t: t.accumulationAndReplicationReductionType(
            poptorch.ReductionType.Mean)),
        OptionError, ("accumulationAndReplicationReductionType",), "ReductionType.Mean",
        ValueError),
    Row("an unknown engine", lambda: option(lambda o: o.engine("warp")),
        lambda: option(lambda o: o.engine("reference")),
        OptionError, ("engine", "warp"), "reference", ValueError),
    Row("a memory proportion above one",
        lambda: option(lambda o: o.setAvailableMemoryProportion({"IPU0": 1.5})),
        lambda: option(lambda o: o.setAvailableMemoryProportion({"IPU0": 0.5})),
        OptionError, ("setAvailableMemoryProportion", "IPU0", "1.5"), "0.6", ValueError),
    Row("options changed after wrapping", lambda: after_wrapping(False),
        lambda: after_wrapping(True), FrozenOptions, ("device_iterations", "frozen"), "clone()",
        AttributeError),
)  # fmt: skip


def set_on(executor: poptorch.PoplarExecutor, optimizer: Any) -> Any:
    return executor.setOptimizer(optimizer)


def lr_becomes(value: float) -> Any:
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, None, optimizer)
    executor(X, Y)
    optimizer.param_groups[0]["lr"] = value
    executor.setOptimizer(optimizer)
    return executor(X, Y)


def nudged(key: str, value: Any) -> Callable[[Net], torch.optim.Optimizer]:
    def make(model: Net) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        optimizer.param_groups[0][key] = value
        return optimizer

    return make


def foreign_later(own: bool) -> Any:
    model = Net()
    executor = poptorch.trainingModel(model, None, SGD(model.parameters(), lr=0.1))
    executor(X, Y)
    executor.setOptimizer(SGD((model if own else Net()).parameters(), lr=0.1))
    return executor(X, Y)


OPTIMIZERS = (
    Row("an optimizer class", lambda: train_with(lambda m: SGD),  # type: ignore[arg-type, return-value]
        lambda: train_with(lambda m: SGD(m.parameters(), lr=0.1)),
        OptimizerError, ("optimizer=type is not a",), "optim", ValueError),
    Row("another model's optimizer", lambda: train_with(lambda m: SGD(Net().parameters(), lr=1)),
        lambda: train_with(lambda m: SGD(m.parameters(), lr=1)),
        ForeignParameter, ("parameter 0 of group 0",), "model.parameters()", KeyError),
    Row("one parameter of another model",
        lambda: train_with(lambda m: SGD([*m.parameters(), nn.Parameter(torch.ones(2))], lr=1)),
        lambda: train_with(lambda m: SGD(m.parameters(), lr=1)),
        ForeignParameter, ("parameter 2 of group 0", "[2]"), "model.parameters()", KeyError),
    Row("setOptimizer with another model's", lambda: foreign_later(False),
        lambda: foreign_later(True),
        ForeignParameter, ("parameter 0 of group 0",), "model.parameters()", KeyError),
    Row("a negative learning rate", lambda: lr_becomes(-0.1), lambda: lr_becomes(0.1),
        OptimizerError, ("lr of parameter group 0 is -0.1",), "0.01", ValueError),
    Row("a learning rate that is not a number", lambda: lr_becomes(NAN), lambda: lr_becomes(0.1),
        OptimizerError, ("lr of parameter group 0 is nan",), "0.01", ValueError),
    Row("an infinite learning rate", lambda: lr_becomes(float("inf")), lambda: lr_becomes(0.1),
        OptimizerError, ("lr of parameter group 0 is inf",), "0.01", ValueError),
    Row("a weight decay that is not a number", lambda: train_with(nudged("weight_decay", NAN)),
        lambda: train_with(nudged("weight_decay", 0.0)),
        OptimizerError, ("weight_decay of parameter group 0 is nan",), "finite", ValueError),
    Row("a beta that is not a number", lambda: train_with(nudged("betas", (NAN, 0.9))),
        lambda: train_with(nudged("betas", (0.9, 0.9))),
        OptimizerError, ("betas of parameter group 0",), "finite", ValueError),
    Row("an optimizer for inference",
        lambda: set_on(poptorch.inferenceModel(m := Net()), SGD(m.parameters(), lr=0.1)),
        lambda: set_on(poptorch.trainingModel(m := Net()), SGD(m.parameters(), lr=0.1)),
        StateError, ("inference model has no optimizer",), "trainingModel"),
    Row("a loss scaling of zero",
        lambda: train_with(lambda m: poptorch.optim.SGD(m.parameters(), lr=0.1, loss_scaling=0.0)),
        lambda: train_with(lambda m: poptorch.optim.SGD(m.parameters(), lr=0.1, loss_scaling=2.0)),
        OptimizerError, ("loss_scaling=0.0",), "positive", ValueError),
)  # fmt: skip


def executor() -> poptorch.PoplarExecutor:
    return poptorch.inferenceModel(Net())


def ran() -> poptorch.PoplarExecutor:
    it = executor()
    it(X)
    return it


def detach(times: int) -> Any:
    it = ran()
    for _ in range(times):
        it.detachFromDevice()
    return it(X)


def attach(detach_first: bool) -> Any:
    it = ran()
    if detach_first:
        it.detachFromDevice()
    return it.attachToDevice()


def offline(run: bool) -> Any:
    it = poptorch.inferenceModel(Net(), options().useOfflineIpuTarget())
    return it(X) if run else it.compile(X)


def backward(call: bool) -> Any:
    _, loss = poptorch.trainingModel(Net())(X, Y)
    return loss.backward() if call else loss


def named_buffers(names: list[str] | None) -> Any:
    model = Net()
    model.register_buffer("b", torch.zeros(2))
    it = poptorch.inferenceModel(
        model, options() if names is None else options().updatableNamedBuffers(names)
    )
    it(X)
    return it.copyNamedBuffersToDevice()


ORDER = (
    Row("detached before it is compiled", lambda: executor().detachFromDevice(),
        lambda: ran().detachFromDevice(), StateError, ("has not been compiled",), "compile"),
    Row("attached before it is compiled", lambda: executor().attachToDevice(),
        lambda: attach(True), StateError, ("has not been compiled",), "compile"),
    Row("weights asked for before it is compiled", lambda: executor().copyWeightsToHost(),
        lambda: ran().copyWeightsToHost(), StateError, ("has not been compiled",), "compile"),
    Row("weights sent before it is compiled", lambda: executor().copyWeightsToDevice(),
        lambda: ran().copyWeightsToDevice(), StateError, ("has not been compiled",), "compile"),
    Row("used after destroy", lambda: (it := ran(), it.destroy(), it.copyWeightsToHost()),
        lambda: (it := ran(), it.destroy(), it(X), it.copyWeightsToHost()),
        StateError, ("has not been compiled",), "compile"),
    Row("random state before it is compiled", lambda: executor().rng_state,
        lambda: ran().rng_state, StateError, ("has not been compiled",), "compile"),
    Row("compilation time before it is compiled", lambda: executor().compilationTime(),
        lambda: ran().compilationTime(), Error, ("compile the model before",), "compile(...)"),
    Row("detached twice", lambda: detach(2), lambda: detach(1),
        StateError, ("not attached",), "attachToDevice()"),
    Row("attached twice", lambda: attach(False), lambda: attach(True),
        StateError, ("already attached",), "detachFromDevice()"),
    Row("run on an offline device", lambda: offline(True), lambda: offline(False),
        OfflineError, ("on an offline device",), "useOfflineIpuTarget", AssertionError),
    Row("backward on an output", lambda: backward(True), lambda: backward(False),
        Error, ("backward() cannot be called explicitly",), "remove the call"),
    Row("no updatable buffers named", lambda: named_buffers(None), lambda: named_buffers(["b"]),
        StateError, ("updatable",), "updatableNamedBuffers"),
    Row("an updatable buffer that is none", lambda: named_buffers(["c"]),
        lambda: named_buffers(["b"]), StateError, ("'c'",), "'b'"),
)  # fmt: skip


class Items(torch.utils.data.Dataset[torch.Tensor]):
    """`count` samples of eight features."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index))


def load(dataset: Any, chosen: poptorch.Options | None = None, **kwargs: Any) -> Any:
    loader = poptorch.DataLoader(chosen or options(), dataset, **kwargs)
    return [infer_with((chosen or options()).clone(), batch) for batch in loader]


def terminated(again: bool) -> Any:
    loader = poptorch.DataLoader(options(), Items(4), batch_size=2)
    loader.terminate()
    if again:
        loader = poptorch.DataLoader(options(), Items(4), batch_size=2)
    return list(loader)


DATA = (
    Row("no batch size", lambda: load(Items(4), batch_size=0), lambda: load(Items(4), batch_size=2),
        DataError, ("batch_size=0",), "number of rows", AssertionError),
    Row("a dataset for the options", lambda: poptorch.DataLoader(Items(4), options()),
        lambda: load(Items(4), batch_size=2), DataError, ("options is a Items",),
        "options first", AssertionError),
    Row("a batch size that is no number", lambda: load(Items(4), batch_size="2"),
        lambda: load(Items(4), batch_size=2), DataError, ("batch_size='2'",), "number of rows",
        AssertionError),
    Row("used after terminate", lambda: terminated(again=False), lambda: terminated(again=True),
        DataError, ("terminated",), "make a new one"),
)  # fmt: skip

ROWS = (*MODELS, *OPTIONS, *OPTIMIZERS, *ORDER, *DATA)
