"""Paddle's IPU programs on the machine you have.

    import pantile.paddle                       # gives the stock wheel (2.6.2) its IPU API
    python -m pantile.paddle script.py          # runs an unchanged script
    from pantile.paddle import api              # the same without the IPU names in Paddle

Importing this package installs the IPU API if Paddle 2.6.2 is installed, and `uninstall()` removes
it; with `PANTILE_PADDLE_INSTALL=0` in the environment nothing is installed, and Paddle is not even
imported. Saved models are read without Paddle (`load_inference_model`).
"""

from __future__ import annotations

import os

from pantile.logging import logger
from pantile.paddle import api
from pantile.paddle.install import install, installed, is_installed, uninstall
from pantile.paddle.predictor import Config, Predictor, create_predictor, load_inference_model
from pantile.paddle.registry import register_operator, unregister_operator
from pantile.paddle.wheel import SUPPORTED, installed_version

__all__ = [
    "Config",
    "Predictor",
    "api",
    "create_predictor",
    "install",
    "installed",
    "is_installed",
    "load_inference_model",
    "register_operator",
    "uninstall",
    "unregister_operator",
]


def _install_if_possible() -> None:
    version = installed_version()
    if version is None or os.environ.get("PANTILE_PADDLE_INSTALL") == "0":
        return
    if version == SUPPORTED:
        install()
        return
    logger.warning(
        "Paddle %s is installed, and only %s can get the IPU API: programs cannot be compiled "
        "here. Saved models run with pantile.paddle.load_inference_model.",
        version,
        SUPPORTED,
    )


_install_if_possible()
