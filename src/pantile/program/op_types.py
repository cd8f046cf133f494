"""What PopTorch's users call an op: `Conv`, `MatMul`, `Relu`.

The names are those of ONNX and of the old backend, because scripts look for them in names of
tensors. An op that is not listed keeps its ATen name, in camel case.
"""

from __future__ import annotations

import operator

from torch import fx

_TYPES = {
    "_adaptive_avg_pool2d": "AveragePool",
    "_embedding_bag": "EmbeddingBag",
    "_log_softmax": "LogSoftmax",
    "_log_softmax_backward_data": "LogSoftmaxGrad",
    "_native_batch_norm_legit": "BatchNormalization",
    "_native_batch_norm_legit_functional": "BatchNormalization",
    "_native_batch_norm_legit_no_training": "BatchNormalization",
    "_softmax": "Softmax",
    "_softmax_backward_data": "SoftmaxGrad",
    "_to_copy": "Cast",
    "_unsafe_view": "Reshape",
    "addmm": "MatMul",
    "amax": "ReduceMax",
    "amin": "ReduceMin",
    "avg_pool2d": "AveragePool",
    "baddbmm": "MatMul",
    "bmm": "MatMul",
    "cat": "Concat",
    "clone": "Identity",
    "convolution": "Conv",
    "convolution_backward": "ConvGrad",
    "cumsum": "CumSum",
    "embedding": "Gather",
    "embedding_dense_backward": "GatherGrad",
    "eq": "Equal",
    "gather": "Gather",
    "ge": "GreaterOrEqual",
    "gt": "Greater",
    "index_select": "Gather",
    "le": "LessOrEqual",
    "linear": "MatMul",
    "lt": "Less",
    "matmul": "MatMul",
    "max_pool2d_with_indices": "MaxPool",
    "max_pool2d_with_indices_backward": "MaxPoolGrad",
    "mean": "ReduceMean",
    "mm": "MatMul",
    "mse_loss": "MeanSquaredError",
    "native_batch_norm": "BatchNormalization",
    "native_dropout": "Dropout",
    "native_group_norm": "GroupNormalization",
    "native_layer_norm": "LayerNormalization",
    "nll_loss2d_forward": "Nll",
    "nll_loss_backward": "NllGrad",
    "nll_loss_forward": "Nll",
    "permute": "Transpose",
    "prod": "ReduceProd",
    "reshape": "Reshape",
    "scatter_add": "ScatterReduce",
    "scatter_reduce": "ScatterReduce",
    "split_with_sizes": "Split",
    "sum": "ReduceSum",
    "t": "Transpose",
    "threshold_backward": "ReluGrad",
    "topk": "TopK",
    "transpose": "Transpose",
    "view": "Reshape",
}

_OPERATORS = {operator.getitem: "GetItem"}


def op_type(node: fx.Node) -> str:
    """The type of the op that a node calls."""
    if node.target in _OPERATORS:
        return _OPERATORS[node.target]
    name = op_name(node)
    if name in _TYPES:
        return _TYPES[name]
    words = name.removesuffix("_backward").strip("_").split("_")
    camel = "".join(word[:1].upper() + word[1:] for word in words)
    return f"{camel}Grad" if name.endswith("_backward") else camel


def op_name(node: fx.Node) -> str:
    """The name of the op in ATen, without its overload."""
    packet = getattr(node.target, "_overloadpacket", node.target)
    return str(getattr(packet, "__name__", packet))
