"""Run every row and write the page: `scripts/conformance`."""

from __future__ import annotations

import sys
import tempfile

from tests.conformance import page
from tests.conformance.table import Row, all_rows
from tqdm import tqdm


def wrong(row: Row) -> str | None:
    """What the check of a row has to complain about."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            row.check(folder)
        except Exception as error:  # a row may fail in any way; it is reported, and the exit is 1
            return f"{type(error).__name__}: {error}"
    return None


def main() -> int:
    """Write the page; 1 if a row does not hold."""
    rows = all_rows()
    results = {row.key: wrong(row) for row in tqdm(rows, desc="rows", leave=False)}
    page.PATH.write_text(page.text(results, rows))
    different = {key: what for key, what in results.items() if what is not None}
    for key, what in different.items():
        print(f"{key}\n    {what}")
    print(f"{len(rows) - len(different)} of {len(rows)} rows hold; {page.PATH.name} written")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
