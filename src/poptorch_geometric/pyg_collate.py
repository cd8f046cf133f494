"""The collater that pads nothing."""

from pantile.geometric.collate import PlainCollater as Collater

__all__ = ["Collater"]
