"""Client models trained on the native engine, against eager PyTorch; see tests/clients/native.py.

A few of them in an ordinary run; all of them with `-m slow`, each in a process of its own.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from tests.clients.client import Client, optimizer_of, same_bits, snapshot
from tests.clients.native import judge_apart, judge_native, native_complaint
from tests.clients.plain_models import CLIENTS as PLAIN
from tests.clients.report import FAMILIES, clients_of
from tests.clients.torchvision_ops import declare_missing_ops

import poptorch

declare_missing_ops()
INSTALLED = [name for name in FAMILIES if name == "plain" or find_spec(name) is not None]
REPRESENTATIVE = {
    "plain": ("variational_autoencoder", "two_towers"),
    "timm": (),
    "torchvision": (),
    "transformers": ("gpt2",),
}
"""Linear layers, embeddings, attention: what compiles in seconds. The rest is in the slow suite."""

EVERY = [
    pytest.param(family, client, id=f"{family}-{client.name}")
    for family in INSTALLED
    for client in clients_of(family)
]
FEW = [
    case
    for case in EVERY
    if case.values[1].name in REPRESENTATIVE[str(case.values[0])]  # type: ignore[union-attr]
]


@pytest.fixture(autouse=True)
def _no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which variant is fastest is not asked here, and each one takes its time to compile."""
    monkeypatch.setenv("PANTILE_TUNE", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.parametrize(("family", "client"), FEW)
def test_trains_as_close_to_eager_as_rounding_allows(family: str, client: Client) -> None:
    verdict = judge_native(client)

    assert not native_complaint(client, verdict)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("family", "client"), EVERY)
def test_every_client_trains_as_close_to_eager_as_rounding_allows(
    family: str, client: Client
) -> None:
    verdict = judge_apart(family, client.name)

    assert not native_complaint(client, verdict)


def test_a_model_with_dropout_trains_to_the_same_bits_from_the_same_seed() -> None:
    [client] = [client for client in PLAIN if client.name == "denoising_autoencoder"]

    def trained() -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = client.model().train()
        optimizer = optimizer_of(model, client.optimizer)
        options = poptorch.Options().showCompilationProgressBar(False).engine("native")
        executor = poptorch.trainingModel(model, options.randomSeed(7), optimizer)
        for _ in range(3):
            result = executor(**client.batch())
        return snapshot(model, optimizer, result)

    first, second = trained(), trained()

    assert all(same_bits(first[name], second[name]) for name in first)
