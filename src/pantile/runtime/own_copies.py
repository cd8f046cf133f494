"""What an executor takes of its own from what the user gave it: the module, the options."""

from __future__ import annotations

from torch import nn

from pantile.enums import OutputMode
from pantile.options import Options
from pantile.runtime.instrument_link import original_class


def shallow_copy(model: nn.Module) -> nn.Module:
    """The same parameters, buffers and children under a module object of its own.

    Not `copy.copy`: a model may define what of it is copied or pickled.
    """
    twin: nn.Module = object.__new__(original_class(type(model)))
    twin.__dict__.update(vars(model))
    return twin


def own_options(options: Options, *, training: bool) -> Options:
    """Freeze the user's options; take a frozen copy with the output mode resolved."""
    options._freeze()
    own = options.clone()
    if own.defaultOutputMode():
        own.outputMode(OutputMode.Final if training else OutputMode.All)
    own._freeze()
    return own
