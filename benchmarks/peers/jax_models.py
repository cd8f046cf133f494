"""The models of the workloads in plain `jax.numpy`, on the weights of the torch models.

    weights, buffers = from_torch(module)          dictionaries with torch's names
    loss, buffers = LOSSES["CNN"](weights, buffers, key, x, labels)

Images are NHWC and filters HWIO, XLA's fast layouts on a CPU. Pooling is a maximum over a reshaped
axis: about twice as fast a step as with `reduce_window` and its gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from torch import nn

Tree = dict[str, jax.Array]
Forward = Callable[..., tuple[jax.Array, Tree]]

_DROPOUT = 0.1


def from_torch(module: nn.Module) -> tuple[Tree, Tree]:
    """Weights and buffers under torch's names, convolution filters as HWIO."""
    weights = {name: _laid_out(value) for name, value in module.named_parameters()}
    buffers = {name: _laid_out(value) for name, value in module.named_buffers()}
    counted = {name: value for name, value in buffers.items() if "num_batches" not in name}
    return weights, counted


def _laid_out(value: Any) -> jax.Array:
    array = value.detach().numpy()
    return jnp.array(array.transpose(2, 3, 1, 0) if array.ndim == 4 else array)


def image_layout(x: np.ndarray) -> jax.Array:
    """NCHW images as NHWC; anything else as it is."""
    return jnp.asarray(x.transpose(0, 2, 3, 1) if x.ndim == 4 else x)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean over all labels."""
    scores = jax.nn.log_softmax(logits.reshape(-1, logits.shape[-1]))
    return -jnp.mean(jnp.take_along_axis(scores, labels.reshape(-1, 1), axis=1))


def _linear(weights: Tree, name: str, x: jax.Array) -> jax.Array:
    y = x @ weights[f"{name}.weight"].T
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def _conv(weights: Tree, name: str, x: jax.Array, *, stride: int = 1, pad: int = 0) -> jax.Array:
    y = lax.conv_general_dilated(
        x,
        weights[f"{name}.weight"],
        (stride, stride),
        [(pad, pad), (pad, pad)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def _pool(x: jax.Array) -> jax.Array:
    rows, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    return x.reshape(rows, height // 2, 2, width // 2, 2, channels).max((2, 4))


def _flat(x: jax.Array) -> jax.Array:
    return x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1)  # in the order of torch's fc weights


def cnn(weights: Tree, buffers: Tree, key: Any, x: jax.Array, *, train: bool) -> Any:
    """`models.CNN`."""
    x = _pool(jax.nn.relu(_conv(weights, "conv1", x)))
    x = _pool(jax.nn.relu(_conv(weights, "conv2", x)))
    return _linear(weights, "fc2", jax.nn.relu(_linear(weights, "fc1", _flat(x)))), buffers


def lenet(weights: Tree, buffers: Tree, key: Any, x: jax.Array, *, train: bool) -> Any:
    """`models.LeNet`."""
    x = _pool(jax.nn.relu(_conv(weights, "conv1", x, pad=1)))
    x = _flat(_pool(jax.nn.relu(_conv(weights, "conv2", x))))
    for name in ("fc1", "fc2", "fc3"):
        x = _linear(weights, name, x)
    return x, buffers


def mlp(weights: Tree, buffers: Tree, key: Any, x: jax.Array, *, train: bool) -> Any:
    """`models.MLP`."""
    x = jax.nn.relu(_linear(weights, "fc1", x))
    x = jax.nn.relu(_linear(weights, "fc2", x))
    return _linear(weights, "fc3", x), buffers


def _layer_norm(weights: Tree, name: str, x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    scale = lax.rsqrt(jnp.mean(centred * centred, -1, keepdims=True) + 1e-5)
    return centred * scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _drop(key: Any, x: jax.Array, rate: float) -> jax.Array:
    if not rate:
        return x
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def _attention(weights: Tree, name: str, x: jax.Array, heads: int) -> jax.Array:
    rows, length, width = x.shape
    parts = _linear(weights, f"{name}.qkv", x).reshape(rows, length, 3, heads, width // heads)
    query, key, value = parts.transpose(2, 0, 3, 1, 4)
    scores = query @ key.swapaxes(-1, -2) / (width // heads) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    mixed = jax.nn.softmax(scores) @ value
    return _linear(weights, f"{name}.out", mixed.swapaxes(1, 2).reshape(rows, length, width))


def gpt(
    weights: Tree, buffers: Tree, key: Any, x: jax.Array, *, train: bool, dropout: float = _DROPOUT
) -> Any:
    """`models.GPT`."""
    rate = dropout if train else 0.0
    keys = iter(jax.random.split(key, 9)) if rate else iter([None] * 9)
    x = _drop(next(keys), weights["words.weight"][x] + weights["places"], rate)
    for block in (f"blocks.{index}" for index in range(4)):
        y = _attention(weights, block, _layer_norm(weights, f"{block}.norm1", x), heads=4)
        x = x + _drop(next(keys), y, rate)
        y = _linear(weights, f"{block}.up", _layer_norm(weights, f"{block}.norm2", x))
        y = _linear(weights, f"{block}.down", jax.nn.gelu(y, approximate=False))
        x = x + _drop(next(keys), y, rate)
    return _linear(weights, "head", _layer_norm(weights, "norm", x)), buffers


def _batch_norm(weights: Tree, buffers: Tree, name: str, x: jax.Array, train: bool) -> jax.Array:
    """Normalise; in training also replace the running figures in `buffers`."""
    if train:
        mean = x.mean((0, 1, 2))
        variance = jnp.mean((x - mean) ** 2, (0, 1, 2))
        count = x.size // x.shape[-1]
        for figure, value in (("mean", mean), ("var", variance * count / (count - 1))):
            known = f"{name}.running_{figure}"
            buffers[known] = 0.9 * buffers[known] + 0.1 * value
    else:
        mean, variance = buffers[f"{name}.running_mean"], buffers[f"{name}.running_var"]
    scale = lax.rsqrt(variance + 1e-5) * weights[f"{name}.weight"]
    return (x - mean) * scale + weights[f"{name}.bias"]


def resnet(weights: Tree, buffers: Tree, key: Any, x: jax.Array, *, train: bool) -> Any:
    """`models.ResNet18`."""
    buffers = dict(buffers)
    norm = partial(_batch_norm, weights, buffers, train=train)
    x = jax.nn.relu(norm("norm", _conv(weights, "conv", x, pad=1)))
    for index in range(8):
        block, stride = f"blocks.{index}", 2 if index in (2, 4, 6) else 1
        y = _conv(weights, f"{block}.conv1", x, stride=stride, pad=1)
        y = _conv(weights, f"{block}.conv2", jax.nn.relu(norm(f"{block}.norm1", y)), pad=1)
        if f"{block}.short.0.weight" in weights:
            x = norm(f"{block}.short.1", _conv(weights, f"{block}.short.0", x, stride=stride))
        x = jax.nn.relu(norm(f"{block}.norm2", y) + x)
    return _linear(weights, "fc", x.mean((1, 2))), buffers


def classifier(weights: Tree, buffers: Tree, key: Any, x: jax.Array, *, train: bool) -> Any:
    """`models.Classifier`: the input part of all gates is one product before the loop."""
    words = weights["words.weight"][x]
    bias = weights["lstm.bias_ih_l0"] + weights["lstm.bias_hh_l0"]
    projected = words @ weights["lstm.weight_ih_l0"].T + bias
    recurrent = weights["lstm.weight_hh_l0"].T

    def cell(state: tuple[jax.Array, jax.Array], entry: jax.Array) -> Any:
        hidden, memory = state
        take, keep, new, show = jnp.split(entry + hidden @ recurrent, 4, axis=-1)
        memory = jax.nn.sigmoid(keep) * memory + jax.nn.sigmoid(take) * jnp.tanh(new)
        return (jax.nn.sigmoid(show) * jnp.tanh(memory), memory), None

    start = jnp.zeros((x.shape[0], recurrent.shape[0]))
    (hidden, _), _ = lax.scan(cell, (start, start), projected.swapaxes(0, 1))
    return _linear(weights, "fc", hidden), buffers


FORWARDS: dict[str, Forward] = {
    "CNN": cnn,
    "LeNet": lenet,
    "MLP": mlp,
    "GPT": gpt,
    "ResNet18": resnet,
    "Classifier": classifier,
}
