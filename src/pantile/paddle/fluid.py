"""The names of `paddle.fluid` that IPU-era scripts use, made of today's functions.

Paddle 2.5 removed `fluid`; the documented IPU demo and PaddleNLP's BERT still import it. A name
that is not here is an AttributeError that says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from pantile.paddle import fluid_layers, fluid_operators
from pantile.paddle.patches import Patches

_OF_STATIC = (
    "CompiledProgram",
    "Executor",
    "Program",
    "Scope",
    "default_main_program",
    "default_startup_program",
    "global_scope",
    "program_guard",
    "scope_guard",
)


_ROOT = "paddle.fluid"
_MOVED = {
    "paddle.base": _ROOT,
    "paddle.jit.dy2static": f"{_ROOT}.dygraph.dygraph_to_static",
}


def install(paddle: Any, patches: Patches) -> None:
    """Make `import paddle.fluid` work, unless the wheel has one of its own."""
    if "paddle.fluid" in sys.modules:
        return
    modules = _modules(paddle)
    for name, module in modules.items():
        sys.modules[name] = module
        patches.on_undo(partial(_forget, name))
    patches.put(paddle, "fluid", modules["paddle.fluid"])


def _forget(name: str) -> None:
    sys.modules.pop(name, None)


class _Fluid(ModuleType):
    """A module of fluid's; what is not here may be in `successor`."""

    successor: ModuleType | None = None

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and hasattr(self.successor, name):
            return getattr(self.successor, name)
        raise AttributeError(
            f"{self.__name__}.{name} is not among the names of paddle.fluid that are kept for IPU "
            "scripts; use its successor in paddle.static, paddle.nn or paddle itself"
        )


def _module(name: str, **names: Any) -> _Fluid:
    module = _Fluid(name)
    vars(module).update(names)
    return module


def _modules(paddle: Any) -> dict[str, ModuleType]:
    static = paddle.static
    layers = _module("paddle.fluid.layers", **_layers(paddle))
    one_hot = _one_hot(paddle)
    parts = {
        "layers": layers,
        "nets": _module("paddle.fluid.nets", simple_img_conv_pool=_image_block(layers)),
        "input": _module("paddle.fluid.input", one_hot=one_hot, embedding=static.nn.embedding),
        "io": _module(
            "paddle.fluid.io",
            save_inference_model=_saver(paddle),
            load_inference_model=static.load_inference_model,
            save=static.save,
            load=static.load,
            DataLoader=paddle.io.DataLoader,
        ),
        "optimizer": _module("paddle.fluid.optimizer", **_optimizers(paddle)),
        "initializer": _module("paddle.fluid.initializer", **_initializers(paddle)),
        "regularizer": _module(
            "paddle.fluid.regularizer",
            L1Decay=paddle.regularizer.L1Decay,
            L2Decay=paddle.regularizer.L2Decay,
        ),
        "clip": _module(
            "paddle.fluid.clip",
            GradientClipByGlobalNorm=paddle.nn.ClipGradByGlobalNorm,
            GradientClipByNorm=paddle.nn.ClipGradByNorm,
            GradientClipByValue=paddle.nn.ClipGradByValue,
        ),
        "framework": paddle.base.framework,
        "core": paddle.base.core,
        "compiler": paddle.base.compiler,
        "unique_name": paddle.base.unique_name,
    }
    root = _module(
        "paddle.fluid",
        **parts,
        **{name: getattr(static, name) for name in _OF_STATIC},
        CPUPlace=paddle.CPUPlace,
        IPUPlace=paddle.IPUPlace,
        LoDTensor=paddle.base.core.LoDTensor,
        ParamAttr=paddle.ParamAttr,
        data=_data(paddle),
        embedding=static.nn.embedding,
        one_hot=one_hot,
        io_save=static.save,
        is_compiled_with_ipu=paddle.is_compiled_with_ipu,
    )
    root.__path__ = []
    root.successor = paddle.base
    modules = {"paddle.fluid": root, **{f"paddle.fluid.{k}": v for k, v in parts.items()}}
    return {**_moved(modules), **modules}


def _moved(taken: Mapping[str, ModuleType]) -> dict[str, ModuleType]:
    """The modules that `paddle.base` and `paddle.jit` keep of fluid, under their old names."""
    found: dict[str, ModuleType] = {}
    for name, module in list(sys.modules.items()):
        for now, then in _MOVED.items():
            if module is not None and (name == now or name.startswith(f"{now}.")):
                found[then + name.removeprefix(now)] = module
    return {
        name: module
        for name, module in found.items()
        if not any(name == own or name.startswith(f"{own}.") for own in taken if own != _ROOT)
    }


def _data(paddle: Any) -> Callable[..., Any]:
    def data(
        name: str,
        shape: Any,
        dtype: str = "float32",
        lod_level: int = 0,
        append_batch_size: bool = True,
        **_: Any,
    ) -> Any:
        return paddle.static.data(name, list(shape), dtype, lod_level)

    return data


def _layer_data(paddle: Any) -> Callable[..., Any]:
    def data(
        name: str,
        shape: Any,
        append_batch_size: bool = True,
        dtype: str = "float32",
        lod_level: int = 0,
        **_: Any,
    ) -> Any:
        grows = append_batch_size and all(size is not None and size >= 0 for size in shape)
        return paddle.static.data(name, [-1, *shape] if grows else list(shape), dtype, lod_level)

    return data


def _layers(paddle: Any) -> dict[str, Any]:
    functional, nn = paddle.nn.functional, paddle.static.nn
    return {
        **fluid_operators.appended(paddle),
        **fluid_operators.renamed(paddle),
        **fluid_layers.unchanged(paddle),
        **fluid_layers.changed(paddle),
        **fluid_layers.arithmetic(paddle),
        "accuracy": paddle.static.accuracy,
        "argmax": lambda x, axis=0: paddle.argmax(x, axis),
        "assign": paddle.assign,
        "argmin": lambda x, axis=0: paddle.argmin(x, axis),
        "batch_norm": nn.batch_norm,
        "cast": paddle.cast,
        "conv2d": nn.conv2d,
        "cross_entropy": _cross_entropy(paddle),
        "data": _layer_data(paddle),
        "dropout": _dropout(functional),
        "fc": _fully_connected(nn),
        "fill_constant": lambda shape, dtype, value, **_: paddle.full(shape, value, dtype),
        "group_norm": nn.group_norm,
        "identity_loss": paddle.incubate.identity_loss,
        "layer_norm": nn.layer_norm,
        "mean": lambda x, name=None: paddle.mean(x, name=name),
        "pool2d": _pool(functional),
        "reduce_all": _reduction(paddle.all),
        "reduce_any": _reduction(paddle.any),
        "reduce_max": _reduction(paddle.max),
        "reduce_mean": _reduction(paddle.mean),
        "reduce_min": _reduction(paddle.min),
        "reduce_prod": _reduction(paddle.prod),
        "reduce_sum": _reduction(paddle.sum),
        "softmax": lambda input, use_cudnn=True, name=None, axis=-1: functional.softmax(
            input, axis, name=name
        ),
        "softmax_with_cross_entropy": functional.softmax_with_cross_entropy,
    }


def _one_hot(paddle: Any) -> Callable[..., Any]:
    """Of `fluid` itself: the classes get a dim of their own."""

    def one_hot(input: Any, depth: int, allow_out_of_range: bool = False) -> Any:
        return paddle.nn.functional.one_hot(input, depth)

    return one_hot


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduction(input: Any, dim: Any = None, keep_dim: bool = False, name: Any = None) -> Any:
        return function(input, axis=dim, keepdim=keep_dim)

    return reduction


def _cross_entropy(paddle: Any) -> Callable[..., Any]:
    """Of shares: the operator `cross_entropy2`, which today's functions no longer build."""

    def cross_entropy(
        input: Any, label: Any, soft_label: bool = False, ignore_index: int = -100
    ) -> Any:
        if soft_label:
            return -paddle.sum(label * paddle.log(input), axis=-1, keepdim=True)
        helper = paddle.base.layer_helper.LayerHelper("cross_entropy2")
        loss, chosen, shape = (
            helper.create_variable_for_type_inference(input.dtype) for _ in range(3)
        )
        helper.append_op(
            type="cross_entropy2",
            inputs={"X": [input], "Label": [label]},
            outputs={"Y": [loss], "MatchX": [chosen], "XShape": [shape]},
            attrs={"ignore_index": ignore_index},
        )
        return loss

    return cross_entropy


def _dropout(functional: Any) -> Callable[..., Any]:
    modes = {"downgrade_in_infer": "downscale_in_infer"}

    def dropout(
        x: Any,
        dropout_prob: float,
        is_test: bool | None = None,
        seed: Any = None,
        name: Any = None,
        dropout_implementation: str = "downgrade_in_infer",
    ) -> Any:
        mode = modes.get(dropout_implementation, dropout_implementation)
        return functional.dropout(x, dropout_prob, training=not is_test, mode=mode)

    return dropout


def _fully_connected(nn: Any) -> Callable[..., Any]:
    def fc(
        input: Any,
        size: int,
        num_flatten_dims: int = 1,
        param_attr: Any = None,
        bias_attr: Any = None,
        act: str | None = None,
        name: Any = None,
    ) -> Any:
        return nn.fc(
            input,
            size,
            num_flatten_dims=num_flatten_dims,
            weight_attr=param_attr,
            bias_attr=bias_attr,
            activation=act,
            name=name,
        )

    return fc


def _pool(functional: Any) -> Callable[..., Any]:
    def pool2d(
        input: Any,
        pool_size: Any = -1,
        pool_type: str = "max",
        pool_stride: Any = 1,
        pool_padding: Any = 0,
        global_pooling: bool = False,
        use_cudnn: bool = True,
        ceil_mode: bool = False,
        name: Any = None,
        exclusive: bool = True,
        data_format: str = "NCHW",
    ) -> Any:
        size = input.shape[2:] if global_pooling else pool_size
        if pool_type == "max":
            return functional.max_pool2d(
                input, size, pool_stride, pool_padding, ceil_mode=ceil_mode
            )
        return functional.avg_pool2d(
            input, size, pool_stride, pool_padding, ceil_mode=ceil_mode, exclusive=exclusive
        )

    return pool2d


def _image_block(layers: Any) -> Callable[..., Any]:
    def simple_img_conv_pool(
        input: Any,
        num_filters: int,
        filter_size: Any,
        pool_size: Any,
        pool_stride: Any,
        pool_padding: Any = 0,
        pool_type: str = "max",
        global_pooling: bool = False,
        conv_stride: Any = 1,
        conv_padding: Any = 0,
        conv_dilation: Any = 1,
        conv_groups: int = 1,
        param_attr: Any = None,
        bias_attr: Any = None,
        act: str | None = None,
        use_cudnn: bool = True,
    ) -> Any:
        convolved = layers.conv2d(
            input,
            num_filters,
            filter_size,
            stride=conv_stride,
            padding=conv_padding,
            dilation=conv_dilation,
            groups=conv_groups,
            param_attr=param_attr,
            bias_attr=bias_attr,
            act=act,
        )
        return layers.pool2d(
            convolved, pool_size, pool_type, pool_stride, pool_padding, global_pooling
        )

    return simple_img_conv_pool


def _saver(paddle: Any) -> Callable[..., Any]:
    def save_inference_model(
        dirname: str,
        feeded_var_names: Any,
        target_vars: Any,
        executor: Any,
        main_program: Any = None,
        **_: Any,
    ) -> Any:
        program = main_program or paddle.static.default_main_program()
        feeds = [program.global_block().var(name) for name in feeded_var_names]
        return paddle.static.save_inference_model(
            dirname, feeds, target_vars, executor, program=program
        )

    return save_inference_model


def _optimizers(paddle: Any) -> dict[str, Any]:
    names = ("SGD", "Momentum", "Adagrad", "Adam", "AdamW", "Adamax", "Adadelta", "RMSProp", "Lamb")
    found: dict[str, Any] = {}
    for name in names:
        cls = getattr(paddle.optimizer, name)
        found[name] = found[f"{name}Optimizer"] = _renamed(cls)
    return found


def _renamed(cls: Any) -> Callable[..., Any]:
    """The class, called with the argument names of fluid."""
    renames = {
        "parameter_list": "parameters",
        "regularization": "weight_decay",
        "grad_clip": "grad_clip",
    }

    def optimizer(*args: Any, **kwargs: Any) -> Any:
        return cls(*args, **{renames.get(key, key): value for key, value in kwargs.items()})

    optimizer.__name__ = cls.__name__
    return optimizer


def _initializers(paddle: Any) -> dict[str, Any]:
    made = paddle.nn.initializer
    return {
        "Constant": made.Constant,
        "ConstantInitializer": made.Constant,
        "MSRA": made.KaimingNormal,
        "Normal": made.Normal,
        "NormalInitializer": made.Normal,
        "TruncatedNormal": made.TruncatedNormal,
        "Uniform": made.Uniform,
        "Xavier": made.XavierUniform,
        "XavierInitializer": made.XavierUniform,
    }
