"""Every op of torch's operator database, forward and as a training graph, against eager."""

from __future__ import annotations

import pytest
from tests.differential.refusals import complaint, is_wrong, known_refusals
from tests.differential.suites import OP_FORWARD, OP_TRAINING, Suite

QUICK = 3  # samples of each op in an ordinary run; all of them with -m slow

EVERY_OP = [
    pytest.param(suite, name, id=f"{suite.name}-{name}")
    for suite in (OP_TRAINING, OP_FORWARD)
    for name in suite.groups()
]


@pytest.mark.parametrize(("suite", "name"), EVERY_OP)
def test_op_matches_eager_bit_for_bit_or_is_refused(suite: Suite, name: str) -> None:
    verdicts = suite.verdicts(name, QUICK)

    assert not [c for i, v in verdicts if (c := complaint(suite.name, name, i, v))]


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "name"), EVERY_OP)
def test_no_sample_of_op_gives_a_wrong_number(suite: Suite, name: str) -> None:
    verdicts = suite.verdicts(name, None)

    assert not [(index, verdict) for index, verdict in verdicts if is_wrong(verdict)]


@pytest.mark.parametrize("suite", [OP_TRAINING, OP_FORWARD], ids=lambda suite: suite.name)
def test_listed_refusals_are_ops_of_the_database(suite: Suite) -> None:
    assert known_refusals(suite.name).keys() <= suite.groups().keys()
