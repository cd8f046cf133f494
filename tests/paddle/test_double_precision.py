"""Whole networks in float64, where rounding hides no mistake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import pytest
from tests.paddle.networks import Built, assert_close, persistables, train_with_paddle, values_in

from pantile.paddle import api


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    paddle.set_default_dtype("float64")
    yield
    paddle.set_default_dtype("float32")


def _agrees(built: Built, feeds: list[dict[str, np.ndarray]], rows: int) -> None:
    theirs, ours = built.start(), built.start()
    expected = train_with_paddle(built, theirs, feeds)
    strategy = api.IpuStrategy()
    strategy.set_graph_config(is_training=True, micro_batch_size=rows)

    model = api.compile(built.main, list(feeds[0]), [built.loss], strategy=strategy, scope=ours)
    losses = [model.run(feed)[0].item() for feed in feeds]
    model.weights_to_host()

    np.testing.assert_allclose(losses, expected, rtol=1e-9, atol=1e-9)
    # Velocities are gradients: batch norm over two images magnifies their rounding.
    names = [name for name in persistables(built) if "velocity" not in name]
    assert_close(values_in(ours, names), values_in(theirs, names), 1e-9)


def _bert() -> Built:
    """Two layers, masked words and next sentence, as BERT is trained before it is used."""
    nn, functional = paddle.nn, paddle.nn.functional
    main, startup = paddle.static.Program(), paddle.static.Program()
    main.random_seed = startup.random_seed = 7
    with paddle.static.program_guard(main, startup):
        ids = paddle.static.data("ids", [3, 8], "int64")
        words = paddle.static.data("words", [3, 8, 1], "int64")
        follows = paddle.static.data("follows", [3, 1], "int64")
        places = paddle.cumsum(paddle.ones_like(ids), axis=1) - 1
        h = nn.Embedding(30, 16)(ids) + nn.Embedding(8, 16)(places)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu")
        h = nn.TransformerEncoder(layer, 2)(nn.LayerNorm(16)(h))
        first = paddle.tanh(nn.Linear(16, 16)(paddle.slice(h, [1], [0], [1]).squeeze(1)))
        loss = paddle.mean(functional.softmax_with_cross_entropy(nn.Linear(16, 30)(h), words))
        loss = loss + paddle.mean(
            functional.softmax_with_cross_entropy(nn.Linear(16, 2)(first), follows)
        )
        clip = paddle.nn.ClipGradByGlobalNorm(1.0)
        paddle.optimizer.Adam(1e-3, grad_clip=clip).minimize(loss)
    return Built(main, startup, loss, first)


def _resnet(depth: str, size: int) -> Built:
    main, startup = paddle.static.Program(), paddle.static.Program()
    main.random_seed = startup.random_seed = 7
    with paddle.static.program_guard(main, startup):
        x = paddle.static.data("x", [2, 3, size, size], "float64")
        y = paddle.static.data("y", [2, 1], "int64")
        scores = getattr(paddle.vision.models, depth)(num_classes=10)(x)
        loss = paddle.mean(paddle.nn.functional.softmax_with_cross_entropy(scores, y))
        paddle.optimizer.Momentum(0.001, weight_decay=paddle.regularizer.L2Decay(1e-4)).minimize(
            loss
        )
    return Built(main, startup, loss, scores)


def _images(count: int, size: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    return [
        {"x": rng.standard_normal((2, 3, size, size)), "y": rng.integers(0, 10, (2, 1))}
        for _ in range(count)
    ]


def test_a_small_bert_trains_to_the_ninth_digit() -> None:
    rng = np.random.default_rng(5)
    feeds = [
        {
            "ids": rng.integers(0, 30, (3, 8)),
            "words": rng.integers(0, 30, (3, 8, 1)),
            "follows": rng.integers(0, 2, (3, 1)),
        }
        for _ in range(4)
    ]

    _agrees(_bert(), feeds, rows=3)


@pytest.mark.slow
def test_resnet_50_trains_to_the_ninth_digit() -> None:
    _agrees(_resnet("resnet50", 64), _images(3, 64), rows=2)
