"""Models of torchvision take three training steps to the same bits as in eager PyTorch."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "torchvision", reason="torchvision is not installed: run scripts/install clients"
)

from tests.clients.client import Client, complaint, judge
from tests.clients.torchvision_models import CLIENTS


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_trains_to_the_bits_of_eager(client: Client) -> None:
    verdict = judge(client)

    assert not complaint(client, verdict)
