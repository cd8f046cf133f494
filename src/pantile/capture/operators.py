"""The operators an IPU has, and the refusal of others in strict mode.

    torch.nan_to_num(x)    CaptureError: Unsupported ops found in compiled model: [aten::nan_to_num]

`SUPPORTED` are the operators that PopTorch documents (spec, Appendix D), and what those are made of
when today's PyTorch records them: `F.one_hot` is a scatter, attention is one operator of its own.
A few more (`baddbmm`, `im2col`, `nansum`, …) are not documented, but the back end has them.
The gradient of an operator is supported with it. What is computed of constants alone is computed
while forward is recorded, so it may be anything.
"""

from __future__ import annotations

from torch import fx
from torch._ops import OpOverload

from pantile.errors import CaptureError
from pantile.program.program import Program, tag_of

_CREATION = """
    arange bernoulli empty empty_like empty_permuted empty_strided exponential eye fill full
    full_like lift_fresh_copy linspace logspace new_empty new_empty_strided new_full new_ones
    new_zeros normal normal_functional ones ones_like rand rand_like randint randint_like randn
    randn_like random randperm range scalar_tensor uniform zero zeros zeros_like
"""
_SHAPES = """
    _conj _pad_circular _reshape_alias _to_copy _unsafe_view alias as_strided as_strided_scatter
    bincount bucketize cat channel_shuffle chunk clone col2im constant_pad_nd contiguous copy detach
    diagonal diagonal_copy diagonal_scatter expand expand_as flatten flip gather im2col index
    index_add index_copy index_fill index_put index_reduce index_select masked_fill masked_scatter
    narrow permute pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d reflection_pad3d
    repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d reshape roll
    scatter scatter_add scatter_reduce select select_scatter slice slice_scatter split
    split_with_sizes squeeze stack t take_along_dim transpose unbind unfold unsafe_chunk
    unsafe_split unsafe_split_with_sizes unsqueeze upsample_bicubic2d upsample_bilinear2d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d view where
"""
_POINTWISE = """
    __and__ __or__ __xor__ _prelu_kernel abs acos acosh add addcdiv addcmul asin asinh atan atan2
    atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu clamp clamp_max clamp_min cos
    cosh div elu eq erf erfc exp expm1 floor floor_divide fmod frac ge gelu glu gt hardshrink
    hardsigmoid hardswish hardtanh isinf isnan le leaky_relu lerp log log10 log1p log2
    log_sigmoid_forward logical_and logical_not logical_or logical_xor lt maximum minimum mish mul
    ne neg pow prelu reciprocal relu relu6 remainder round rrelu_with_noise
    rrelu_with_noise_functional rsqrt rsub selu sgn sigmoid sign silu sin sinh softplus softshrink
    sqrt square sub tan tanh threshold true_divide trunc xlogy
"""
_REDUCTIONS = """
    _log_softmax _safe_softmax _softmax all amax amin aminmax any argmax argmin argsort
    count_nonzero cumprod cumsum frobenius_norm linalg_matrix_norm linalg_vector_norm logsumexp max
    mean median min nansum norm prod sort std std_mean sum topk var var_mean
"""
_PRODUCTS = """
    _cdist_forward _euclidean_dist _trilinear addmm addmv baddbmm bilinear bmm cdist conv1d conv2d
    conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution cross dot einsum
    linalg_cross linear matmul mm mv tensordot
"""
_LAYERS = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d _assert_async _assert_tensor_metadata
    _batch_norm_impl_index _batch_norm_no_update
    _batch_norm_with_update _batch_norm_with_update_functional _ctc_loss _embedding_bag
    _embedding_bag_forward_only _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training _native_multi_head_attention
    _scaled_dot_product_attention_math _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
    _transformer_encoder_layer_fwd _weight_norm _weight_norm_interface adaptive_avg_pool1d
    avg_pool1d avg_pool2d avg_pool3d batch_norm binary_cross_entropy
    binary_cross_entropy_with_logits embedding group_norm gru gru_cell huber_loss
    instance_norm layer_norm lstm lstm_cell max_pool1d max_pool2d max_pool2d_with_indices
    max_pool3d max_pool3d_with_indices mkldnn_rnn_layer mse_loss multi_margin_loss
    multilabel_margin_loss_forward native_batch_norm native_dropout native_group_norm
    native_layer_norm nll_loss2d_forward nll_loss_forward rnn_relu rnn_relu_cell rnn_tanh
    rnn_tanh_cell scaled_dot_product_attention smooth_l1_loss soft_margin_loss
"""
SUPPORTED = frozenset(
    (_CREATION + _SHAPES + _POINTWISE + _REDUCTIONS + _PRODUCTS + _LAYERS).split()
)
"""Names in the `aten` namespace."""


def refuse_unsupported(program: Program) -> None:
    """Raise if forward calls an operator that an IPU does not have."""
    fed = _fed(program)
    unknown: dict[str, fx.Node] = {}
    for node in program.graph.nodes:
        name = _aten_name(node)
        if name and node in fed and tag_of(node).phase == "forward" and name not in SUPPORTED:
            unknown.setdefault(name, node)
    if unknown:
        ops = ", ".join(f"aten::{name}" for name in sorted(unknown))
        raise CaptureError(
            f"Unsupported ops found in compiled model: [{ops}]",
            fix="express them by operators of docs/conformance.md, or leave strict mode",
            location=tag_of(next(iter(unknown.values()))).source,
        )


def _aten_name(node: fx.Node) -> str:
    if not isinstance(node.target, OpOverload) or node.target.namespace != "aten":
        return ""
    name = node.target._schema.name.removeprefix("aten::")
    return name if name.startswith("__") else name.rstrip("_")


def _fed(program: Program) -> set[fx.Node]:
    """The nodes whose value is not known before the program runs."""
    found = set(program.placeholders)
    for node in program.graph.nodes:
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found
