"""Every row of the conformance table holds, and the page says what the rows say."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conformance import page
from tests.conformance.table import Row, all_rows

ROWS = all_rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_the_code_is_as_the_row_says(row: Row, tmp_path: Path) -> None:
    row.check(str(tmp_path))


def test_no_row_is_there_twice() -> None:
    keys = [row.key for row in ROWS]

    assert len(set(keys)) == len(keys)


def test_the_page_is_the_one_the_generator_writes() -> None:
    wanted = page.text({row.key: None for row in ROWS}, ROWS)

    assert page.PATH.read_text() == wanted, "run scripts/conformance to write the page again"
