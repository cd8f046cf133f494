"""Why a program is not ours."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx


class Refused(Exception):
    """No rule takes this program, or this part of it: another lowering must."""

    def __init__(self, why: str, at: Mapping[fx.Node, str] | None = None) -> None:
        """`at` are the operators that have no rule, each with its reason, if that is known."""
        super().__init__(why)
        self.at = dict(at or {})

    def see_at(self, node: fx.Node) -> None:
        """Say where, unless that is known better."""
        self.at = self.at or {node: str(self)}
