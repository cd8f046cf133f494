"""Optimizer state: lazy reads, uploads, and exchange with torch.optim."""

import copy

import pytest
import torch
from torch import nn

from pantile import optim
from pantile.errors import OptimizerStateError


class Device:
    """A device that holds one state tensor and one scalar."""

    strict = False

    def __init__(self, momentum=1.0):
        self.state = {"Accl1___w": torch.tensor(momentum), "Accl2___w": torch.tensor(2.0)}
        self.param = {"lossScaling_FLOAT": torch.tensor(1.0)}
        self.reads = 0

    def read(self):
        self.reads += 1
        return dict(self.state), dict(self.param)

    def write(self, ipu_state, ipu_param):
        self.state.update(ipu_state)
        self.param.update(ipu_param)


class StrictDevice(Device):
    strict = True


def make_optimizer():
    return optim.Adam([nn.Parameter(torch.ones(3))], lr=0.1)


def attached(device):
    optimizer = make_optimizer()
    optimizer.attach_state_source(device)
    return optimizer


def test_there_is_no_device_state_before_compilation():
    optimizer = make_optimizer()

    state = optimizer.state_dict()

    assert state["ipu_state"] is None
    assert state["ipu_param"] is None
    assert not optimizer.has_state()


def test_a_read_is_cached_until_the_next_run():
    device = Device()
    optimizer = attached(device)

    optimizer.state_dict()
    optimizer.state_dict()
    reads_before_the_run = device.reads
    device.state["Accl1___w"] = torch.tensor(5.0)
    optimizer.device_state_changed()

    assert optimizer.ipu_state_is_dirty
    assert optimizer.get_state_dict()["ipu_state"]["Accl1___w"].item() == 5.0
    assert (reads_before_the_run, device.reads) == (1, 2)
    assert not optimizer.ipu_state_is_dirty


def test_a_loaded_state_is_uploaded_before_the_next_run():
    saved = attached(Device(momentum=7.0)).state_dict()
    device = Device()
    optimizer = attached(device)

    optimizer.load_state_dict(saved)
    flags_after_load = optimizer.host_state_is_dirty, optimizer.ipu_state_is_dirty
    optimizer.upload_state()

    assert flags_after_load == (True, False)
    assert device.state["Accl1___w"].item() == 7.0
    assert not optimizer.host_state_is_dirty


def test_a_state_loaded_before_compilation_waits_for_the_device():
    saved = attached(Device(momentum=7.0)).state_dict()
    device = Device()
    optimizer = make_optimizer()

    optimizer.set_state_dict(saved)
    optimizer.attach_state_source(device)
    optimizer.upload_state()

    assert device.state["Accl1___w"].item() == 7.0


def test_entries_missing_from_a_loaded_state_keep_the_devices_values(caplog):
    saved = attached(Device(momentum=7.0)).state_dict()
    del saved["ipu_state"]["Accl2___w"]
    optimizer = attached(Device())

    optimizer.load_state_dict(saved)
    optimizer.upload_state()

    assert "Accl2___w" in caplog.text
    assert optimizer.state_dict()["ipu_state"]["Accl2___w"].item() == 2.0


def test_a_detached_optimizer_keeps_the_state_read_last():
    device = Device()
    optimizer = attached(device)
    optimizer.state_dict()
    device.state["Accl1___w"] = torch.tensor(5.0)
    optimizer.device_state_changed()

    optimizer.detach_state_source()

    assert optimizer.state_dict()["ipu_state"]["Accl1___w"].item() == 1.0


def test_a_copy_takes_the_state_along_but_not_the_device():
    device = Device()
    optimizer = attached(device)

    copied = copy.deepcopy(optimizer)
    device.state["Accl1___w"] = torch.tensor(5.0)
    copied.device_state_changed()

    assert copied.state_dict()["ipu_state"]["Accl1___w"].item() == 1.0


@pytest.mark.parametrize("state", [{}, {"state": {}}])
def test_a_dictionary_that_is_no_state_is_refused(state):
    with pytest.raises(
        OptimizerStateError, match="Only IPU optimizer states can be loaded onto the IPU"
    ) as caught:
        make_optimizer().load_state_dict(state)

    assert isinstance(caught.value, RuntimeError)


def test_strict_mode_refuses_a_state_of_plain_torch():
    plain = torch.optim.Adam([nn.Parameter(torch.ones(3))]).state_dict()

    with pytest.raises(OptimizerStateError, match="Only IPU optimizer states"):
        attached(StrictDevice()).load_state_dict(plain)


def test_the_environment_asks_for_strict_mode_too(monkeypatch):
    plain = torch.optim.Adam([nn.Parameter(torch.ones(3))]).state_dict()
    monkeypatch.setenv("POPTORCH_STRICT", "1")

    with pytest.raises(OptimizerStateError, match="Only IPU optimizer states"):
        make_optimizer().load_state_dict(plain)


def one_step(optimizer):
    (weight,) = optimizer.param_groups[0]["params"]
    weight.grad = torch.tensor([1.0, 2.0, 3.0])
    optimizer.step()
    return weight.detach().clone()


def test_the_state_travels_to_plain_torch_and_back():
    ours = make_optimizer()
    one_step(ours)
    theirs = torch.optim.Adam([nn.Parameter(ours.param_groups[0]["params"][0].detach().clone())])
    ours_again = optim.Adam([nn.Parameter(theirs.param_groups[0]["params"][0].detach().clone())])

    # torch does not copy the tensors it loads, so without the copies all three would share them.
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    ours_again.load_state_dict(copy.deepcopy(theirs.state_dict()))

    expected = one_step(ours)
    assert torch.equal(one_step(theirs), expected)
    assert torch.equal(one_step(ours_again), expected)


def test_loading_keeps_float_moments_of_half_parameters_exact():
    ours = optim.Adam([nn.Parameter(torch.ones(3, dtype=torch.float16))])
    ours.param_groups[0]["params"][0].grad = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float16)
    ours.step()
    again = optim.Adam([nn.Parameter(torch.ones(3, dtype=torch.float16))])

    again.load_state_dict(ours.state_dict())

    (loaded,), (saved,) = again.state.values(), ours.state.values()
    assert loaded["exp_avg_sq"].dtype == torch.float32
    assert torch.equal(loaded["exp_avg_sq"], saved["exp_avg_sq"])
    assert loaded["exp_avg_sq"] is not saved["exp_avg_sq"]


def test_a_shallow_copy_reads_nothing_from_the_device():
    device = Device()
    optimizer = attached(device)

    copied = copy.copy(optimizer)

    assert device.reads == 0
    assert copied.param_groups[0]["params"][0] is optimizer.param_groups[0]["params"][0]
    assert copied.state_dict()["ipu_state"] is None
