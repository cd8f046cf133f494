"""Why a program is not ours."""

from __future__ import annotations


class Refused(Exception):
    """No rule takes this program, or this part of it: another lowering must."""
