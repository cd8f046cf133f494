"""Classifiers, segmentation and video models of torchvision, with random weights.

The larger architectures are built smaller than published, through the same classes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torchvision.models as tv
from tests.clients.client import Client, Optimizer
from tests.clients.images import CLASSES, Classifier, pictures
from torch import nn

SIZE = 64
"""Rows and columns of a picture. With 32, the last batch norms would see one value a picture: over
two values they multiply rounding errors by up to 300, and every float32 result is chance."""


def _first(result: Any) -> torch.Tensor:
    """The main logits of a model that has auxiliary ones as well."""
    return result[0]  # type: ignore[no-any-return]


def _segmented(result: dict[str, torch.Tensor]) -> torch.Tensor:
    return result["out"]


def _classifier(
    name: str, optimizer: Optimizer = "adamw", logits: Any = None, **settings: Any
) -> Client:
    def model() -> nn.Module:
        return Classifier(tv.get_model(name, num_classes=CLASSES, **settings), logits)

    return Client(name, model, pictures(3, SIZE, SIZE), optimizer)


def _segmentation(name: str, optimizer: Optimizer = "adamw", **settings: Any) -> Client:
    def model() -> nn.Module:
        made = tv.get_model(name, num_classes=CLASSES, weights_backbone=None, **settings)
        return Classifier(made, _segmented)

    return Client(name, model, pictures(3, SIZE, SIZE, labels=(SIZE, SIZE)), optimizer)


def _video(name: str, optimizer: Optimizer, *size: int) -> Client:
    def model() -> nn.Module:
        return Classifier(tv.get_model(name, num_classes=CLASSES))

    return Client(name, model, pictures(3, *size), optimizer)


def _built(
    name: str, size: int, make: Callable[[], nn.Module], optimizer: Optimizer = "adamw"
) -> Client:
    return Client(name, lambda: Classifier(make()), pictures(3, size, size), optimizer)


def _small_resnext() -> nn.Module:
    from torchvision.models.resnet import Bottleneck

    return tv.ResNet(Bottleneck, [1, 1, 1, 1], CLASSES, groups=32, width_per_group=4)


def _small_convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig

    blocks = [CNBlockConfig(16, 32, 2), CNBlockConfig(32, 64, 2), CNBlockConfig(64, None, 1)]
    return tv.ConvNeXt(blocks, stochastic_depth_prob=0.2, num_classes=CLASSES)


_small_densenet = partial(
    tv.DenseNet,
    growth_rate=8,
    block_config=(2, 4, 3),
    num_init_features=16,
    drop_rate=0.1,
    num_classes=CLASSES,
)


_small_vit = partial(
    tv.VisionTransformer,
    image_size=32,
    patch_size=8,
    num_layers=2,
    num_heads=4,
    hidden_dim=32,
    mlp_dim=64,
    dropout=0.1,
    num_classes=CLASSES,
)
_small_swin = partial(
    tv.SwinTransformer,
    patch_size=[4, 4],
    embed_dim=24,
    depths=[2, 2],
    num_heads=[2, 4],
    window_size=[4, 4],
    stochastic_depth_prob=0.2,
    num_classes=CLASSES,
)


def _small_swin_v2() -> nn.Module:
    from torchvision.models import swin_transformer as swin

    return _small_swin(block=swin.SwinTransformerBlockV2, downsample_layer=swin.PatchMergingV2)


_small_maxvit = partial(
    tv.MaxVit,
    input_size=(32, 32),
    stem_channels=16,
    partition_size=4,
    block_channels=[16, 32],
    block_layers=[1, 1],
    head_dim=8,
    stochastic_depth_prob=0.2,
    num_classes=CLASSES,
)

CLIENTS = (
    _classifier("squeezenet1_1", optimizer="sgd"),
    _classifier("mobilenet_v2", optimizer="sgd"),
    _classifier("mobilenet_v3_small"),
    _classifier("shufflenet_v2_x0_5", optimizer="sgd"),
    _classifier("mnasnet0_5", optimizer="sgd"),
    _classifier("efficientnet_b0", optimizer="sgd"),
    _classifier("resnet18", optimizer="sgd"),
    _classifier("googlenet", optimizer="sgd", logits=_first, init_weights=False),
    _classifier("regnet_x_400mf", optimizer="sgd"),
    _segmentation("lraspp_mobilenet_v3_large", optimizer="sgd"),
    _segmentation("deeplabv3_mobilenet_v3_large", optimizer="sgd"),
    _video("mc3_18", "sgd", 4, 16, 16),
    _built("resnext", 32, _small_resnext),
    _built("densenet", 32, _small_densenet, "sgd"),
    _built("convnext", 32, _small_convnext),
    _built("vision_transformer", 32, _small_vit),
    _built("swin_transformer", 32, _small_swin),
    _built("swin_transformer_v2", 32, _small_swin_v2, "sgd"),
    _built("max_vit", 32, _small_maxvit, "sgd"),
)
