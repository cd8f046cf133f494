"""Every module of torch's module database, as a training step and as inference, against eager."""

from __future__ import annotations

import pytest
from tests.differential.executor import judge_executor
from tests.differential.refusals import complaint, known_refusals
from tests.differential.suites import MODULE_INFERENCE, MODULE_TRAINING, Suite

QUICK = 8  # inputs of each module in an ordinary run; all of them with -m slow

EVERY_MODULE = [
    pytest.param(suite, name, id=f"{suite.name}-{name}")
    for suite in (MODULE_TRAINING, MODULE_INFERENCE)
    for name in suite.groups()
]


@pytest.mark.parametrize(("suite", "name"), EVERY_MODULE)
def test_module_matches_eager_bit_for_bit_or_is_refused(suite: Suite, name: str) -> None:
    verdicts = suite.verdicts(name, QUICK)

    assert not [c for i, v in verdicts if (c := complaint(suite.name, name, i, v))]


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "name"), EVERY_MODULE)
def test_every_input_of_module_matches_eager_or_is_refused(suite: Suite, name: str) -> None:
    verdicts = suite.verdicts(name, None)

    assert not [c for i, v in verdicts if (c := complaint(suite.name, name, i, v))]


@pytest.mark.parametrize("name", MODULE_TRAINING.groups())
def test_a_step_of_the_executor_matches_an_eager_step(name: str) -> None:
    case = next(MODULE_TRAINING.groups()[name](1))

    verdict = judge_executor(case)

    assert not complaint("executor", name, 0, verdict)


@pytest.mark.parametrize("suite", [MODULE_TRAINING, MODULE_INFERENCE], ids=lambda suite: suite.name)
def test_listed_refusals_are_modules_of_the_database(suite: Suite) -> None:
    assert known_refusals(suite.name).keys() <= suite.groups().keys()
