"""timm's own `test_*` family: fifteen tiny members of fifteen architectures."""

from __future__ import annotations

from functools import partial

import timm
from tests.clients.client import Client
from tests.clients.images import CLASSES, Classifier, pictures
from torch import nn


def _model(name: str) -> nn.Module:
    return Classifier(timm.create_model(name, num_classes=CLASSES, drop_rate=0.1))


def _client(position: int, name: str) -> Client:
    size = timm.get_pretrained_cfg(name, allow_unregistered=False).input_size
    kind = "sgd" if position % 3 == 0 else "adamw"
    return Client(name, partial(_model, name), pictures(*size), kind)


CLIENTS = tuple(_client(i, name) for i, name in enumerate(sorted(timm.list_models("test_*"))))
