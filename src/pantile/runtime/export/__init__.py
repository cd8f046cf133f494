"""Executors in files: what is written, how it is found again, and what is refused."""
