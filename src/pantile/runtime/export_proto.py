"""`POPTORCH_EXPORT_PROTO_FILE`: the compiled step, written where the variable says.

PopTorch writes ONNX. Here it is the JSON of `_debugGetPopartIR()`, without the update: there is no
ONNX op set for what a step holds, and the JSON is what tools of ours read. With
`POPTORCH_EXPORT_PROTO_AS_BINARY` the same text is written without the line breaks.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

from pantile.program.program import Program
from pantile.runtime.ir import ir_json
from pantile.store.atomic_file import write_atomically

_VARIABLE = "POPTORCH_EXPORT_PROTO_FILE"
_PLAIN = "POPTORCH_EXPORT_PROTO_AS_BINARY"


def export_program(program: Program, partials: torch.dtype) -> None:
    """Write the program of one micro-batch, if the environment asks for it."""
    name = os.environ.get(_VARIABLE)
    if not name:
        return
    text = ir_json(program, None, partials)
    if os.environ.get(_PLAIN, "0") in ("", "0"):
        text = json.dumps(json.loads(text), indent=1)
    file = Path(name)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, [text.encode()])
