"""The `pantile` command: one file per sub-command, listed in `main`."""
