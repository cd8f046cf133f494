"""How the operators of Paddle 3's programs are called in the older form.

    "pool2d": _rule("pool2d", "X =ksize")

says: operand 0 goes to the slot X, operand 1 is a constant that becomes the attribute ksize. A
constant that is not known when the file is read goes to the slot after the bar, if there is one:
`=shape|ShapeTensor`. Operators that are not listed keep their name and take X to Out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Rule:
    """The older name of an operator, of its operands, results and attributes."""

    name: str
    inputs: tuple[str, ...] = ("X",)
    outputs: tuple[str, ...] = ("Out",)
    attributes: Mapping[str, str] = field(default_factory=dict)


def _rule(name: str, inputs: str = "X", outputs: str = "Out", **attributes: str) -> Rule:
    return Rule(name, tuple(inputs.split()), tuple(outputs.split()), attributes)


_LAYOUT = {"data_format": "data_layout"}
_REDUCED = {"keepdim": "keep_dim", "axis": "dim"}
_BINARY = {
    "add": "elementwise_add",
    "subtract": "elementwise_sub",
    "multiply": "elementwise_mul",
    "divide": "elementwise_div",
    "maximum": "elementwise_max",
    "minimum": "elementwise_min",
    "elementwise_pow": "elementwise_pow",
    "remainder": "elementwise_mod",
    "floor_divide": "elementwise_floordiv",
    **{
        name: name
        for name in (
            *("equal", "not_equal", "less_than", "less_equal", "greater_than", "greater_equal"),
            *("logical_and", "logical_or", "logical_xor", "bmm", "dot"),
        )
    },
}
_RENAMED = {
    "hardshrink": "hard_shrink",
    "tanh_shrink": "tanh_shrink",
    "hardswish": "hard_swish",
    "share_data_": "share_data",
}
_OTHERS = {
    "arange": _rule("range", "Start End Step"),
    "argmax": _rule("arg_max", "X =axis"),
    "argmin": _rule("arg_min", "X =axis"),
    "argsort": _rule("argsort", "X", "Out Indices"),
    "assign_value_": _rule("assign_value", "Ignored"),
    "batch_norm_": _rule(
        "batch_norm",
        "X Mean Variance Scale Bias",
        "Y MeanOut VarianceOut SavedMean SavedVariance ReserveSpace",
        **_LAYOUT,
    ),
    "bicubic_interp": _rule("bicubic_interp_v2", "X OutSize SizeTensor Scale", **_LAYOUT),
    "bilinear_interp": _rule("bilinear_interp_v2", "X OutSize SizeTensor Scale", **_LAYOUT),
    "linear_interp": _rule("linear_interp_v2", "X OutSize SizeTensor Scale", **_LAYOUT),
    "nearest_interp": _rule("nearest_interp_v2", "X OutSize SizeTensor Scale", **_LAYOUT),
    "trilinear_interp": _rule("trilinear_interp_v2", "X OutSize SizeTensor Scale", **_LAYOUT),
    "cast": _rule("cast", dtype="out_dtype"),
    "clip": _rule("clip", "X =min|Min =max|Max"),
    "concat": _rule("concat", "X =axis|AxisTensor"),
    "conv2d": _rule("conv2d", "Input Filter", "Output"),
    "conv2d_transpose": _rule("conv2d_transpose", "Input Filter =output_size", "Output"),
    "cross_entropy_with_softmax": _rule(
        "softmax_with_cross_entropy", "Logits Label", "Softmax Loss"
    ),
    "cumsum": _rule("cumsum", "X =axis"),
    "depthwise_conv2d": _rule("depthwise_conv2d", "Input Filter", "Output"),
    "depthwise_conv2d_transpose": _rule(
        "depthwise_conv2d_transpose", "Input Filter =output_size", "Output"
    ),
    "dropout": _rule(
        "dropout",
        "X SeedTensor =dropout_prob",
        "Out Mask",
        mode="dropout_implementation",
    ),
    "embedding": _rule("lookup_table_v2", "Ids W"),
    "expand": _rule("expand_v2", "X =shape|Shape"),
    "expand_as": _rule("expand_as_v2", "X Y"),
    "flatten": _rule("flatten_contiguous_range"),
    "full": _rule("fill_constant", ""),
    "full_like": _rule("fill_any_like", "X =value"),
    "full_with_tensor": _rule("fill_constant", "ValueTensor =shape|ShapeTensor"),
    "gather": _rule("gather", "X Index =axis|Axis"),
    "gather_nd": _rule("gather_nd", "X Index"),
    "group_norm": _rule("group_norm", "X Scale Bias", "Y Mean Variance", **_LAYOUT),
    "hardsigmoid": _rule("hard_sigmoid"),
    "index_select": _rule("index_select", "X Index", axis="dim"),
    "instance_norm": _rule("instance_norm", "X Scale Bias", "Y SavedMean SavedVariance"),
    "layer_norm": _rule("layer_norm", "X Scale Bias", "Y Mean Variance"),
    "leaky_relu": _rule("leaky_relu", negative_slope="alpha"),
    "logsumexp": _rule("logsumexp"),
    "matmul": _rule("matmul_v2", "X Y", transpose_x="trans_x", transpose_y="trans_y"),
    "max": _rule("reduce_max", "X =dim", **_REDUCED),
    "max_pool2d_with_index": _rule("max_pool2d_with_index", "X", "Out Mask", kernel_size="ksize"),
    "mean": _rule("reduce_mean", "X =dim", **_REDUCED),
    "mean_all": _rule("mean"),
    "min": _rule("reduce_min", "X =dim", **_REDUCED),
    "one_hot": _rule("one_hot_v2", "X =depth|depth_tensor"),
    "pad": _rule("pad"),
    "pad3d": _rule("pad3d", "X =paddings|Paddings", pad_value="value"),
    "pool2d": _rule("pool2d", "X =ksize"),
    "pow": _rule("pow", y="factor"),
    "prelu": _rule("prelu", "X Alpha"),
    "prod": _rule("reduce_prod", "X =dim", keepdim="keep_dim"),
    "reshape": _rule("reshape2", "X =shape|ShapeTensor"),
    "rnn": _rule(
        "rnn", "Input PreState WeightList SequenceLength", "Out DropoutState State Reserve"
    ),
    "scale": _rule("scale", "X =scale|ScaleTensor"),
    "shape": _rule("shape", "Input"),
    "shape64": _rule("shape", "Input"),
    "slice": _rule("slice", "Input =starts|StartsTensor =ends|EndsTensor"),
    "softshrink": _rule("softshrink", threshold="lambda"),
    "split": _rule("split", "X =sections =axis"),
    "split_with_num": _rule("split", "X =axis"),
    "squeeze": _rule("squeeze2", "X =axes"),
    "stack": _rule("stack", "X", "Y"),
    "strided_slice": _rule(
        "strided_slice", "Input =starts|StartsTensor =ends|EndsTensor =strides|StridesTensor"
    ),
    "sum": _rule("reduce_sum", "X =dim", keepdim="keep_dim"),
    "tile": _rule("tile", "X =repeat_times|RepeatTimes"),
    "topk": _rule("top_k_v2", "X =k|K", "Out Indices"),
    "transpose": _rule("transpose2", perm="axis"),
    "tril": _rule("tril_triu"),
    "unsqueeze": _rule("unsqueeze2", "X =axes"),
    "unstack": _rule("unstack", "X", "Y"),
    "where": _rule("where", "Condition X Y"),
}

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **{new: _rule(old, "X Y") for new, old in _BINARY.items()},
        **{new: _rule(old) for new, old in _RENAMED.items()},
        **_OTHERS,
    }
)
