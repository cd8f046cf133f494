"""What `import pva` finds: reports read with the names of Graphcore's library (`pantile.pva`)."""

from pantile.pva import Report, openReport

__all__ = ["Report", "openReport"]
