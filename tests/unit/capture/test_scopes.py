"""Tensors are named after the modules and scopes they are computed in (spec 2.18)."""

from __future__ import annotations

import threading

import pytest
import torch
from tests.unit.runtime.toy_models import Pass, options, sgd
from torch import nn

import poptorch


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(1, 4, 5), nn.MaxPool2d(2), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Linear(100, 10), nn.ReLU())
        self.softmax = nn.LogSoftmax(1)
        self.loss = nn.NLLLoss()

    def forward(self, x, labels=None):
        out = self.softmax(self.layer2(self.layer1(x).flatten(1)))
        return out if labels is None else (out, self.loss(out, labels))


def images(rows=2):
    return torch.randn(rows, 1, 14, 14)


def names_of(model, *args, opts=None):
    executor = poptorch.inferenceModel(model, opts or options())
    executor.compile(*args)
    return executor.getTensorNames()


def test_a_result_is_called_by_its_module_and_op():
    names = names_of(Classifier(), images())

    for name in (
        "layer1/0/Conv:0",
        "layer1/1/MaxPool:0",
        "layer1/2/Relu:0",
        "layer2/0/MatMul:0",
        "layer2/1/Relu:0",
        "softmax/LogSoftmax:0",
        "Reshape:0",
    ):
        assert name in names


def test_backward_is_called_by_the_module_whose_gradient_it_computes():
    model = Classifier()
    step = poptorch.trainingModel(model, options(), sgd(model))
    step.compile(images(), torch.tensor([1, 2]))

    names = step.getTensorNames()

    assert any(name.startswith("layer1/0/ConvGrad:") for name in names)
    assert "softmax/LogSoftmaxGrad:0" in names
    assert any(name.startswith("loss/") for name in names)


def test_without_module_names_only_scopes_of_the_user_are_left():
    opts = options().disableModuleNamescope()

    names = names_of(Classifier(), images(), opts=opts)

    assert "Conv:0" in names
    assert not any("layer1/" in name for name in names)


def test_name_scopes_nest_with_modules():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Pass(self._inside)

        def _inside(self, x):
            with poptorch.NameScope("low"):
                return torch.exp(x)

        def forward(self, x):
            with poptorch.NameScope("high"):
                return self.inner(x) + 1

    names = names_of(Outer(), torch.ones(2))

    assert "high/inner/low/Exp:0" in names
    assert "high/Add:0" in names


def test_equal_names_are_numbered():
    names = names_of(Pass(lambda x: torch.exp(torch.exp(x))), torch.ones(2))

    assert names[-2:] == ["Exp:0", "Exp:0/1"]


def test_the_hooks_of_the_user_still_run_and_none_of_ours_stays():
    calls = []
    model = Classifier()
    model.layer2.register_forward_hook(lambda *_: calls.append("hook"))
    before = len(nn.modules.module._global_forward_pre_hooks)

    names_of(model, images())

    assert calls == ["hook"]
    assert len(nn.modules.module._global_forward_pre_hooks) == before


def test_a_failing_forward_leaves_no_hook_behind():
    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError):
        names_of(Pass(fails), torch.ones(2))

    assert not nn.modules.module._global_forward_pre_hooks


def test_modules_called_on_another_thread_meanwhile_open_no_scope():
    other, begun, done = nn.Linear(2, 2), threading.Event(), threading.Event()

    def elsewhere():
        begun.wait(30)
        other(torch.ones(1, 2))
        done.set()

    thread = threading.Thread(target=elsewhere)
    thread.start()

    def forward(x):
        begun.set()
        assert done.wait(30)
        return torch.exp(x)

    model = nn.Sequential(Pass(forward))

    assert "0/Exp:0" in names_of(model, torch.ones(2))
    thread.join()


def test_attributes_of_a_scope_are_found_in_the_ir():
    def forward(x):
        with poptorch.Attribute(__outline={"layer": "embedding"}):
            x = torch.exp(x)
        return x + 1

    executor = poptorch.inferenceModel(Pass(forward), options())
    executor.compile(torch.ones(2))

    assert '"__outline/layer":"embedding"' in executor._debugGetPopartIR()
