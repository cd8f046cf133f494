"""Wrapping, releasing, owners and suspension."""

from __future__ import annotations

import gc
import pickle
import threading

import pytest
import torch
from tests.unit.runtime.device_owner import DeviceOwner, Net
from torch import nn

from pantile.errors import AlreadyWrapped, Error
from pantile.runtime.instrument import (
    check_buffers,
    instrument,
    owner_of,
    plain,
    release,
    suspended,
    uninstrumented,
)


def real_classes(module: nn.Module) -> list[type]:
    """Every class under the module, read without touching a weight."""
    tensors = [
        tensor
        for child in module.modules()
        for slot in ("_parameters", "_buffers")
        for tensor in vars(child)[slot].values()
    ]
    return [type(obj) for obj in (*module.modules(), *tensors)]


def test_instrumenting_swaps_every_class_and_releasing_restores_them_exactly():
    model = Net()
    before = real_classes(model)

    owner = DeviceOwner(model)
    during = real_classes(model)
    release(model)

    assert not set(during) & set(before)
    assert real_classes(model) == before
    assert owner.pulls == 0


def test_releasing_twice_or_a_model_that_was_never_wrapped_is_harmless():
    model = Net()

    release(model)
    owner = DeviceOwner(model)
    release(model)
    release(model)

    assert type(model) is Net
    assert owner_of(model) is None
    assert owner.destroyed == 0


def test_the_owner_is_known_to_the_model_and_its_children():
    model = Net()

    owner = DeviceOwner(model)

    assert owner_of(model) is owner
    assert owner_of(model.fc) is owner
    assert owner_of(nn.Linear(1, 1)) is None


def test_wrapping_a_wrapped_model_is_refused_and_names_the_way_out():
    model = Net()
    owner = DeviceOwner(model)

    with pytest.raises(AlreadyWrapped, match=r"already been wrapped(.|\n)*model\.destroy\(\)"):
        DeviceOwner(model)

    assert issubclass(AlreadyWrapped, RuntimeError)
    assert owner_of(model) is owner


def test_destroying_through_the_model_lets_it_be_wrapped_again():
    model = Net()
    first = DeviceOwner(model)
    first.train(5.0)

    model.destroy()
    second = DeviceOwner(model)

    assert (first.destroyed, first.pulls) == (1, 1)
    assert owner_of(model) is second
    assert torch.equal(model.fc.weight, torch.full((3, 3), 5.0))
    assert second.pulls == 0


def test_destroying_through_the_model_unwraps_it_even_if_the_owner_does_nothing():
    model = Net()
    owner = DeviceOwner(model)
    owner.destroy = lambda: None

    model.destroy()

    assert type(model) is Net
    assert owner_of(model) is None


def test_only_the_wrapped_model_gets_a_destroy_method():
    model = Net()
    owner = DeviceOwner(model)

    assert owner_of(model) is owner
    assert hasattr(model, "destroy")
    assert not hasattr(model.fc, "destroy")
    release(model)
    assert not hasattr(model, "destroy")


def test_the_same_owner_may_instrument_again_and_takes_in_new_parts():
    model = Net()
    owner = DeviceOwner(model)
    model.extra = nn.Linear(2, 2)

    instrument(model, owner)

    assert owner_of(model.extra) is owner
    assert type(vars(model.extra)["_parameters"]["weight"]) is not nn.Parameter
    release(model)
    assert type(vars(model.extra)["_parameters"]["weight"]) is nn.Parameter


def test_a_dead_owner_releases_the_model():
    model = Net()
    before = real_classes(Net())
    owner = DeviceOwner(model)

    del owner
    gc.collect()

    assert owner_of(model) is None
    assert real_classes(model) == before
    assert DeviceOwner(model).pulls == 0


def test_a_dead_model_does_not_keep_its_owner_watching():
    model = Net()
    owner = DeviceOwner(model)
    owner.module = nn.Identity()
    del model
    gc.collect()

    other = Net()
    instrument(other, owner)

    assert owner_of(other) is owner


def test_nothing_is_pulled_while_suspended_in_this_thread():
    model = Net()
    owner = DeviceOwner(model)
    owner.train(2.0)

    with suspended(model):
        inside = model.fc.weight.detach().clone()
        assert owner.pulls == 0

    assert not torch.equal(inside, torch.full((3, 3), 2.0))
    assert torch.equal(model.fc.weight, torch.full((3, 3), 2.0))
    assert owner.pulls == 1


def test_suspension_in_one_thread_does_not_hold_for_another():
    model = Net()
    owner = DeviceOwner(model)
    owner.train(2.0)
    seen = []

    with suspended(model):
        reader = threading.Thread(target=lambda: seen.append(model.scale.tolist()))
        reader.start()
        reader.join(timeout=30)

    assert seen == [[2.0, 2.0, 2.0]]
    assert owner.pulls == 1


def test_suspension_ends_when_its_block_raises():
    model = Net()
    owner = DeviceOwner(model)
    owner.train(2.0)

    with pytest.raises(KeyError), suspended(model):
        raise KeyError

    assert model.scale.sum().item() == 6.0
    assert owner.pulls == 1


def test_suspending_a_model_that_nobody_owns_is_harmless():
    model = nn.Linear(2, 2)

    with suspended(model):
        assert model.weight.shape == (2, 2)


def test_a_failing_pull_reaches_the_reader_and_can_be_retried():
    model = Net()
    owner = DeviceOwner(model)
    owner.train(3.0)
    pull = owner.copyWeightsToHost

    def fail() -> None:
        raise Error("device lost")

    owner.copyWeightsToHost = fail
    with pytest.raises(Error, match="device lost"):
        model.fc.weight.sum()
    owner.copyWeightsToHost = pull

    assert model.scale.sum().item() == 9.0


def test_the_pull_is_looked_up_on_the_owner_instance():
    model = Net()
    owner = DeviceOwner(model)
    calls = []
    owner.copyWeightsToHostIfNeeded = lambda: calls.append(1) or False

    model.state_dict()

    assert calls


def test_classes_are_plain_inside_uninstrumented_and_nothing_is_pulled():
    model = Net()
    before = real_classes(model)
    owner = DeviceOwner(model)
    owner.train(4.0)

    with uninstrumented(model):
        assert real_classes(model) == before
        assert model.fc.weight.shape == (3, 3)
        assert owner_of(model) is owner

    assert owner.pulls == 0
    assert model.scale.sum().item() == 12.0
    assert owner.pulls == 1


def test_the_instrumentation_returns_when_an_uninstrumented_block_raises():
    model = Net()
    owner = DeviceOwner(model)
    during = real_classes(model)

    with pytest.raises(KeyError), uninstrumented(model):
        raise KeyError

    assert real_classes(model) == during
    assert owner_of(model) is owner


def test_releasing_and_wrapping_again_inside_uninstrumented_holds_afterwards():
    model = Net()
    first = DeviceOwner(model)

    with uninstrumented(model):
        first.destroy()
        second = DeviceOwner(model)

    assert owner_of(model) is second
    second.train(1.5)
    assert model.scale.sum().item() == 4.5


def test_plain_gives_the_same_storage_under_the_own_class():
    model = Net()
    owner = DeviceOwner(model)
    owner.train(2.0)

    weight, offset = plain(model.fc.weight), plain(model.offset)

    assert type(weight) is nn.Parameter
    assert type(offset) is torch.Tensor
    assert weight.requires_grad
    assert weight.data_ptr() == model.fc.weight.data_ptr()
    assert torch.equal(weight, torch.full((3, 3), 2.0))
    assert owner.pulls == 1


def test_two_wrapped_models_that_share_a_parameter_are_both_asked():
    left, right = nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
    right.weight = left.weight
    first, second = DeviceOwner(left), DeviceOwner(right)
    first.train(1.0)

    assert left.weight.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert (first.pulls, second.pulls) == (1, 0)

    second.train(2.0)
    assert left.weight.tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert right.bias.tolist() == [2.0, 2.0]
    assert (first.pulls, second.pulls) == (1, 1)


def test_releasing_one_of_two_models_keeps_the_other_instrumented():
    left, right = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    right.weight = left.weight
    first, second = DeviceOwner(left), DeviceOwner(right)

    release(left)
    second.train(2.0)

    assert type(left) is nn.Linear
    assert left.weight.sum().item() == 8.0
    assert (first.pulls, second.pulls) == (0, 1)
    release(right)
    assert type(left.weight) is nn.Parameter


def test_a_part_of_a_wrapped_model_can_be_wrapped_by_itself():
    model = Net()
    whole, part = DeviceOwner(model), DeviceOwner(model.fc)

    part.train(2.0)

    assert model.fc.weight.sum().item() == 18.0
    assert (whole.pulls, part.pulls) == (0, 1)
    assert owner_of(model.fc) is part
    model.fc.destroy()
    assert owner_of(model.fc) is whole
    assert not hasattr(model.fc, "destroy")


def test_tied_weights_stay_one_object():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    owner = DeviceOwner(model)
    owner.train(3.0)

    assert model[1].weight.sum().item() == 12.0
    assert model[0].weight is model[1].weight
    assert owner.pulls == 1
    release(model)
    assert type(model[0].weight) is nn.Parameter
    clone = pickle.loads(pickle.dumps(model))
    assert clone[0].weight is clone[1].weight


def test_a_parameter_registered_as_a_buffer_is_refused_by_name():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].register_buffer("running", nn.Parameter(torch.ones(2)))

    with pytest.raises(Error, match=r"'0\.running' is a Parameter(.|\n)*fix: .*register_buffer"):
        check_buffers(model)
    with pytest.raises(Error):
        DeviceOwner(model)

    assert type(model) is nn.Sequential
    model[0].running = model[0].running.detach()
    check_buffers(model)


def test_plain_and_instrumented_buffers_pass_the_check():
    model = Net()
    check_buffers(model)
    owner = DeviceOwner(model)

    check_buffers(model)

    assert owner.pulls == 0


def test_a_parameter_without_storage_is_refused_by_name():
    from torch.testing._internal.two_tensor import TwoTensor

    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(TwoTensor(torch.ones(2, 2), torch.ones(2, 2)))

    with pytest.raises(Error, match="'weight' is a TwoTensor"):
        DeviceOwner(model)

    assert type(model) is nn.Linear
