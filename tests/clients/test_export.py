"""Models nobody here wrote are saved in the middle of training and go on to the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("timm", reason="timm is not installed: run scripts/install clients")
pytest.importorskip(
    "torchvision", reason="torchvision is not installed: run scripts/install clients"
)
pytest.importorskip(
    "transformers", reason="transformers is not installed: run scripts/install clients"
)

from tests.clients import plain_models, timm_models, torchvision_models, transformers_models
from tests.clients.client import Client, optimizer_of

import poptorch

CHOSEN = {
    plain_models: ("lstm_tagger",),
    timm_models: ("test_vit",),
    torchvision_models: ("squeezenet1_1",),
    transformers_models: ("t5", "mamba"),
}
CLIENTS = [
    client for module, names in CHOSEN.items() for client in module.CLIENTS if client.name in names
]


def test_all_chosen_clients_are_there() -> None:
    assert len(CLIENTS) == sum(map(len, CHOSEN.values()))


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_saved_training_goes_on_to_the_same_bits(client: Client, tmp_path: Path) -> None:
    model = client.model().train()
    optimizer = optimizer_of(model, client.optimizer)
    options = poptorch.Options().showCompilationProgressBar(False).engine("reference")
    executor = poptorch.trainingModel(model, options, optimizer)
    batch = client.batch()
    executor(**batch)
    executor.save(tmp_path / "model.poptorch")
    expected = executor(**batch)

    loaded = poptorch.load(tmp_path / "model.poptorch")
    result = loaded(**batch)

    first, wanted = (r[0] if isinstance(r, tuple) else r for r in (result, expected))
    assert torch.equal(first, wanted)
    names = {n for n, _ in model.named_parameters()}
    assert names == {n for n, _ in loaded.model.named_parameters()}
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor), name
