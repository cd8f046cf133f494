"""Models that Paddle 3 saves: `.json` instead of `.pdmodel`."""

from __future__ import annotations

from pantile.errors import UnknownFormat
from pantile.paddle.description import Description


def read_pir(data: bytes, what: str) -> Description:
    """Read a program in the form of Paddle 3."""
    raise UnknownFormat(
        f"{what} is in the format of Paddle 3's new programs",
        fix="save it as .pdmodel: with FLAGS_enable_pir_api=0 in the environment",
    )
