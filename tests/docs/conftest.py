"""The page about Lightning imports torchvision where it is installed, whatever its build."""

from __future__ import annotations

from tests.clients.torchvision_ops import declare_missing_ops

declare_missing_ops()
