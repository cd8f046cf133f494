"""The ops and annotations a model can use in `forward`, one family a file.

context.py        who listens during capture
loss.py hints.py scopes.py blocks.py multi_conv.py        annotations
dynamic.py control_flow.py                                run-time slices, loops, branches
printing.py host_call.py custom.py ctc.py points.py       ops of their own
module_text.py hooks.py                                   not ops, but used beside them
"""

from pantile.ops.blocks import (
    BeginBlock,
    Block,
    BlockFunction,
    LegacyBeginBlockFn,
    removeBlocks,
)
from pantile.ops.context import isRunningOnIpu
from pantile.ops.control_flow import cond, for_loop
from pantile.ops.ctc import ctc_beam_search_decoder
from pantile.ops.custom import custom_op, register_custom_op
from pantile.ops.device_tensors import accessAttributes, getIpuTensorId
from pantile.ops.dynamic import dynamic_slice, dynamic_update
from pantile.ops.hints import (
    nop,
    recomputationCheckpoint,
    serializedMatMul,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
)
from pantile.ops.hooks import registerPostCompileHook, registerPreCompileHook
from pantile.ops.host_call import CPU
from pantile.ops.loss import identity_loss
from pantile.ops.module_text import module_repr
from pantile.ops.multi_conv import MultiConv
from pantile.ops.points import fps, nearest
from pantile.ops.printing import ipu_print_tensor
from pantile.ops.scopes import Attribute, NameScope

__all__ = [
    "CPU",
    "Attribute",
    "BeginBlock",
    "Block",
    "BlockFunction",
    "LegacyBeginBlockFn",
    "MultiConv",
    "NameScope",
    "accessAttributes",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "for_loop",
    "fps",
    "getIpuTensorId",
    "identity_loss",
    "ipu_print_tensor",
    "isRunningOnIpu",
    "module_repr",
    "nearest",
    "nop",
    "recomputationCheckpoint",
    "registerPostCompileHook",
    "registerPreCompileHook",
    "register_custom_op",
    "removeBlocks",
    "serializedMatMul",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
]
