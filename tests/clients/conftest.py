"""Client models need torchvision to be importable; timm and transformers import it as well."""

from __future__ import annotations

from tests.clients.torchvision_ops import declare_missing_ops

declare_missing_ops()
