"""The private names that PopTorch scripts and libraries reach for."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from tests.unit.runtime.toy_models import Regression, data, options, same_state, sgd, strict, twin
from torch import nn

import pantile
import poptorch


def test_every_public_name_is_found_in_poptorch():
    for name in pantile.__all__:
        assert getattr(poptorch, name) is not None


@pytest.mark.parametrize(
    "module",
    ["enums", "ops", "optim", "options", "profiling", "testing", "_impl", "_poplar_executor"],
)
def test_submodules_can_be_imported_by_their_full_name(module):
    assert importlib.import_module(f"poptorch.{module}")


def test_a_star_import_leaves_print_alone():
    names = {}
    exec("from poptorch import *", names)

    assert names["trainingModel"] is poptorch.trainingModel
    assert "print" not in names
    assert poptorch.print is not print


def test_the_version_is_one_that_clients_accept():
    major, minor, _ = poptorch.__version__.split(".")

    assert (int(major), int(minor)) >= (3, 3)


def test_the_executor_is_one_class_under_both_names():
    from poptorch._poplar_executor import PoplarExecutor

    executor = poptorch.inferenceModel(Regression(), options())

    assert PoplarExecutor is poptorch.PoplarExecutor
    assert isinstance(executor, PoplarExecutor)


def test_unwrapping_gives_the_plain_classes_until_the_model_is_wrapped_again():
    from poptorch._impl import rewrapModelIfNecessary, unwrapModelIfNecessary

    model = Regression()
    eager, batch = twin(model), data(4)
    step = poptorch.trainingModel(model, strict(), sgd(model))
    step(*batch)
    eager(*batch)[1].backward()
    sgd(eager).step()

    unwrapModelIfNecessary(model)
    assert type(model.fc.weight) is nn.Parameter
    assert same_state(model, eager)

    rewrapModelIfNecessary(model)
    assert type(model.fc.weight) is not nn.Parameter
    version = step._host_weights_version
    step(*batch)
    model.state_dict()
    assert step._host_weights_version == version + 1


def test_unwrapping_a_model_that_is_not_instrumented_does_nothing():
    from poptorch._impl import rewrapModelIfNecessary, unwrapModelIfNecessary

    model = Regression()
    poptorch.trainingModel(model, options())

    unwrapModelIfNecessary(model)
    rewrapModelIfNecessary(model)

    assert type(model) is Regression


def test_batches_are_combined_position_by_position():
    from poptorch._utils import combine_batch_tensors_gen

    batches = [[torch.ones(2), torch.zeros(1, 3)], [torch.ones(1), torch.ones(2, 3)]]

    first, second = combine_batch_tensors_gen(batches)

    assert torch.equal(first, torch.ones(3))
    assert torch.equal(second, torch.cat([torch.zeros(1, 3), torch.ones(2, 3)]))


def test_operators_under_torch_ops_work_inside_and_outside_a_model():
    class Casts(nn.Module):
        def forward(self, x):
            torch.ops.poptorch.push_name_scope("inner")
            x = torch.ops.poptorch.internal_cast(x, "FLOAT16")
            torch.ops.poptorch.pop_name_scope()
            return x + 1

    x = torch.ones(2)

    out = poptorch.inferenceModel(Casts(), options())(x)

    assert out.dtype is torch.float16
    assert torch.equal(out, Casts()(x))
    with pytest.raises(ValueError, match="'FLOAT17'"):
        torch.ops.poptorch.internal_cast(x, "FLOAT17")


def test_a_software_device_counts_as_hardware(monkeypatch):
    assert poptorch.ipuHardwareIsAvailable()
    assert poptorch.ipuHardwareVersion() in (2, 21)

    monkeypatch.setenv("POPTORCH_IPU_MODEL", "1")
    assert not poptorch.ipuHardwareIsAvailable()
    with pytest.raises(AssertionError):
        poptorch.ipuHardwareVersion()


def test_inference_under_no_grad_and_inference_mode_gives_the_same_numbers():
    model, x = Regression(), torch.randn(4, 3)
    infer = poptorch.inferenceModel(model, options())

    with torch.inference_mode():
        first = infer(x)
    with torch.no_grad():
        second = infer(x)

    assert torch.equal(first, model(x))
    assert torch.equal(second, first)
    assert not first.is_inference()


def test_zero_grad_of_the_optimizer_is_harmless():
    model = Regression()
    eager, batch = twin(model), data(4)
    optimizer, other = sgd(model), sgd(eager)
    step = poptorch.trainingModel(model, options(), optimizer)

    for _ in range(2):
        optimizer.zero_grad()
        step(*batch)
        other.zero_grad()
        eager(*batch)[1].backward()
        other.step()

    assert same_state(model, eager)


def test_the_extension_module_has_the_error_classes():
    from poptorch import poptorch_core

    assert poptorch_core.Error is poptorch.Error
    assert poptorch.poptorch_core.RecoverableError is poptorch.RecoverableError
    assert not poptorch_core.isCompilingWithDispatcher()


def test_errors_have_the_attributes_that_clients_read():
    error = poptorch.createPoptorchError("it failed")
    fault = poptorch.RecoverableError("link down", recovery_action="LINK_RESET")

    assert (error.message, error.type, error.location) == ("it failed", "poptorch_py_error", "")
    assert str(error) == "'poptorch_py_error': it failed"
    assert fault.recovery_action == "LINK_RESET"
    assert fault.type in str(fault) and "link down" in str(fault)


def test_tensors_of_a_model_have_ids_and_those_of_the_host_have_none():
    ids = []

    class Asks(nn.Module):
        def forward(self, x):
            y = x + 1
            ids.extend([poptorch.getIpuTensorId(x), poptorch.getIpuTensorId(y)])
            return y

    poptorch.inferenceModel(Asks(), options())(torch.ones(2))

    assert len(set(ids)) == 2
    with pytest.raises(poptorch.Error, match="Expected an IPU tensor"):
        poptorch.getIpuTensorId(torch.ones(2))


def test_attributes_of_custom_ops_are_found_by_their_id():
    poptorch.register_custom_op("names.test", "Scale", 1, lambda x, factor: x * factor)

    class Scales(nn.Module):
        def forward(self, x):
            (y,) = poptorch.custom_op([x], "Scale", "names.test", 1, [x], {"factor": 3.5})
            return y

    out = poptorch.inferenceModel(Scales(), options())(torch.ones(2))

    assert out.tolist() == [3.5, 3.5]
    assert {"factor": 3.5} in [poptorch.accessAttributes(f"attr:{i}") for i in range(100)]
    assert poptorch.accessAttributes("attr:none") is None


@pytest.mark.parametrize("fault", poptorch.poptorch_core.TestErrorType)
def test_every_fault_of_a_device_is_a_poptorch_error_with_a_place(fault: Any) -> None:
    with pytest.raises(poptorch.Error) as caught:
        poptorch.poptorch_core._throwTestError(fault)

    assert fault.name in caught.value.message
    assert caught.value.location and caught.value.location in caught.value.args[0]
    assert caught.value.location not in caught.value.message


def test_a_recoverable_fault_says_how_to_recover() -> None:
    kinds = poptorch.poptorch_core.TestErrorType

    with pytest.raises(poptorch.RecoverableError) as caught:
        poptorch.poptorch_core._throwTestError(kinds.PoplarRecoverableFullReset)

    assert caught.value.recovery_action == "FULL_RESET"
    assert caught.value.type == "poplar_recoverable_runtime_error"


def test_levels_of_the_old_backend_are_checked() -> None:
    poptorch._logging.setPopartLogLevel("DEBUG")

    for wrong in (0, "FOO"):
        with pytest.raises(ValueError, match="Level must be one of"):
            poptorch._logging.setPopartLogLevel(wrong)
