"""Models written with torch.nn alone take three training steps to the same bits as in eager."""

from __future__ import annotations

import pytest
from tests.clients.client import Client, complaint, judge
from tests.clients.plain_models import CLIENTS


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_trains_to_the_bits_of_eager(client: Client) -> None:
    verdict = judge(client)

    assert not complaint(client, verdict)
