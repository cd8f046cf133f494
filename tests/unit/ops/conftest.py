"""A recorder that writes down what it hears."""

from types import SimpleNamespace

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pantile.ops.context import recording


class Notebook:
    """Implements the Recorder protocol by taking notes."""

    def __init__(self, *, strict=False, training=False):
        self.strict = strict
        self.training = training
        self.events = []
        self.losses = []
        self.marks = []

    def mark_loss(self, tensor):
        self.losses.append(tensor)

    def begin_block(self, user_id, ipu_id):
        self.events.append(("begin", user_id, ipu_id))

    def end_block(self):
        self.events.append("end")

    def mark(self, tensor, kind, **details):
        self.marks.append((kind, details))

    def push_scope(self, kind, value):
        self.events.append(("push", kind, value))

    def pop_scope(self, kind):
        self.events.append(("pop", kind))


@pytest.fixture
def device():
    """Ways to run code as if it were captured."""

    def captured(function, *inputs, **modes):
        """The graph of `function` on fake tensors."""

        def recorded(*args):
            with recording(Notebook(**modes)):
                return function(*args)

        return make_fx(recorded, tracing_mode="fake")(*inputs)

    return SimpleNamespace(Notebook=Notebook, recording=recording, captured=captured)


@pytest.fixture
def strict_environment(monkeypatch):
    """PopTorch's own behaviour outside captures."""
    monkeypatch.setenv("POPTORCH_STRICT", "1")


@pytest.fixture
def count_up():
    """The numbers 0 to 11 as a matrix of six rows."""
    return torch.arange(12.0).reshape(6, 2)
