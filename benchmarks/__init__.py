"""Measurements. Each module prints figures with their spread; `--help` says what it measures."""
