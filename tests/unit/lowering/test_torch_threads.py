"""The number of torch's threads, for a while."""

from __future__ import annotations

import pytest
import torch

from pantile.lowering.torch_threads import torch_threads


def test_the_number_holds_within_and_is_as_before_afterwards() -> None:
    before = torch.get_num_threads()

    with torch_threads(before + 1):
        within = torch.get_num_threads()

    assert (within, torch.get_num_threads()) == (before + 1, before)


def test_the_number_is_as_before_after_a_failure() -> None:
    before = torch.get_num_threads()

    with pytest.raises(ZeroDivisionError), torch_threads(before + 1):
        raise ZeroDivisionError

    assert torch.get_num_threads() == before
