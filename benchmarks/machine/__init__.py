"""The machine model against published results: `python -m benchmarks.machine` prints the table."""
