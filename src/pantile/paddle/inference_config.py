"""`paddle.inference` on software IPUs: the IPU methods of `Config`, and predictors made of it."""

from __future__ import annotations

import functools
from typing import Any

from pantile.paddle.patches import Patches
from pantile.paddle.predictor import Config, Predictor, create_predictor

_METHODS = ("enable_ipu", "set_ipu_config", "set_ipu_custom_info", "load_ipu_config")
_by_id: dict[int, Config] = {}


def install(paddle: Any, patches: Patches) -> None:
    """Give Paddle's `Config` working IPU methods, and `create_predictor` the sense to use them."""
    stock_create = paddle.inference.create_predictor
    config_class = paddle.inference.Config

    @functools.wraps(stock_create)
    def create(config: Any) -> Any:
        ours = _by_id.pop(id(config), None)
        return stock_create(config) if ours is None else _predictor(config, ours)

    for name in _METHODS:
        patches.put(config_class, name, _method(name))
    patches.put(config_class, "use_ipu", lambda self: id(self) in _by_id)
    for module in (paddle.inference, paddle.inference.wrapper):
        patches.put(module, "create_predictor", create)
    patches.on_undo(_by_id.clear)


def _method(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> None:
        # Paddle's C++ objects cannot be referred to weakly: the entry lives until the predictor
        # is made, which is what a Config is for.
        ours = _by_id.setdefault(id(self), Config(""))
        getattr(ours, name)(*args, **kwargs)

    method.__name__ = name
    method.__doc__ = getattr(Config, name).__doc__
    return method


def _predictor(config: Any, ours: Config) -> Predictor:
    named = Config(config.prog_file() or config.model_dir(), config.params_file() or None)
    named.ipu = ours.ipu
    return create_predictor(named)
