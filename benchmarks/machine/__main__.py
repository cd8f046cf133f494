"""`python -m benchmarks.machine`."""

from benchmarks.machine.table import main

main()
