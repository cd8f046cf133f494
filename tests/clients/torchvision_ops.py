"""Make `import torchvision` work next to a CPU build of torch.

torchvision's compiled ops are linked against a CUDA build; without them the import stops at the
missing operators `nms` and `qnms`. Declaring the two schemas is enough for every model that does
not call compiled ops. transformers and timm import torchvision when it is installed, so this comes
before them too.
"""

from __future__ import annotations

import torch

_MISSING = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_libraries: list[torch.library.Library] = []


def declare_missing_ops() -> None:
    """Declare what `import torchvision` looks for, once per process."""
    if _libraries:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _MISSING:
        if not hasattr(torch.ops.torchvision, schema.partition("(")[0]):
            library.define(schema)
    _libraries.append(library)  # its ops live as long as the object
