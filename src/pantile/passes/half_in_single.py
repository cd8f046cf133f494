"""Compute products and sums of float16 in float32, and round the result.

    %y = mm(%a, %b)               %s = _to_copy(%a, float32);  %t = _to_copy(%b, float32)
    -> float16[2, 3]       ->     %p = mm(%s, %t)
                                  %y = _to_copy(%p, float16)

CPUs have no arithmetic on float16 worth the name: a native product takes 25 to 200 times as long
as one in float32. Elementwise ops stay: a compiler widens them by itself, inside its loops. So does
bfloat16: CPUs that multiply it do so at twice the speed of float32.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._ops import OpOverload

from pantile.passes.formula import Formulas
from pantile.passes.node_writer import NodeWriter
from pantile.program.nodes import erase
from pantile.program.program import Program, copy_graph

_HALF, _SINGLE = torch.float16, torch.float32

_PRODUCTS = """
    mm addmm bmm baddbmm addbmm mv addmv dot vdot matmul linear linear_backward _trilinear
    _addmm_activation _cdist_forward _cdist_backward
    convolution convolution_backward _convolution conv1d conv2d conv3d conv_tbc conv_tbc_backward
    conv_transpose1d conv_transpose2d conv_transpose3d _slow_conv2d_forward _slow_conv2d_backward
    slow_conv3d_forward slow_conv_transpose2d slow_conv_transpose3d mkldnn_convolution
    lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    mkldnn_rnn_layer mkldnn_rnn_layer_backward
    scaled_dot_product_attention _scaled_dot_product_attention_math
    _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward
    _native_multi_head_attention _transformer_encoder_layer_fwd
"""
_SUMS = """
    sum mean prod nansum var std var_mean std_mean norm linalg_vector_norm logsumexp dist trace
    cumsum cumprod logcumsumexp
    _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
    native_batch_norm native_batch_norm_backward _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    _batch_norm_with_update_functional batch_norm_backward
    _fused_rms_norm _fused_rms_norm_backward
    nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward mse_loss
    smooth_l1_loss huber_loss soft_margin_loss binary_cross_entropy multi_margin_loss
    multilabel_margin_loss_forward _ctc_loss _ctc_loss_backward
    embedding_dense_backward _embedding_bag _embedding_bag_forward_only index_add scatter_add
"""
_WIDENED = frozenset(f"aten::{name}" for name in f"{_PRODUCTS}{_SUMS}".split())


def half_in_single(program: Program) -> Program:
    """The same program, with float16 products and sums computed in float32."""
    found = [node for node in program.graph.nodes if _is_half_sum(node)]
    if not found:
        return program
    graph, moved = copy_graph(program.graph)
    nodes = [moved[node] for node in found]
    writer = NodeWriter(graph)
    formulas = Formulas(writer)
    for node in nodes:
        with writer.replacing(node):
            _widen(node, formulas)
    graph.lint()
    return program.replace(graph=graph)


def _is_half_sum(node: fx.Node) -> bool:
    if not isinstance(node.target, OpOverload) or node.target._schema.name not in _WIDENED:
        return False
    values = [node.meta["val"], *(source.meta.get("val") for source in node.all_input_nodes)]
    return any(_is_half(value) for value in pytree.tree_leaves(values))


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is _HALF


def _widen(node: fx.Node, formulas: Formulas) -> None:
    """Put a call in float32, and casts round it, in the place of `node`."""

    def widened(value: Any) -> Any:
        if isinstance(value, fx.Node) and _is_half(value.meta["val"]):
            return formulas.cast(value, _SINGLE)
        return _SINGLE if value is _HALF else value

    given: Any = (node.args, node.kwargs)
    args, kwargs = fx.node.map_aggregate(given, widened)
    wide = formulas.writer.call(node.target, *args, **kwargs)
    if isinstance(node.meta["val"], torch.Tensor):
        node.replace_all_uses_with(formulas.cast(wide, node.meta["val"].dtype))
    else:
        _replace_parts(node, wide, formulas)
    erase(node)


def _replace_parts(node: fx.Node, wide: fx.Node, formulas: Formulas) -> None:
    """Give the users of an op with several results those of the wide one, rounded."""
    parts: dict[int, fx.Node] = {}
    for user in list(node.users):
        index: Any = user.args[1]
        if index not in parts:
            part = formulas.writer.call(operator.getitem, wide, index)
            value = user.meta["val"]
            parts[index] = formulas.cast(part, value.dtype) if _is_half(value) else part
        user.replace_all_uses_with(parts[index])
        erase(user)
