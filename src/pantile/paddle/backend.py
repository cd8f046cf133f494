"""What Paddle's Python classes expect of an IPU build: the back-end object and the place."""

from __future__ import annotations

import os
import weakref
from typing import Any

from pantile.errors import OptionError
from pantile.logging import logger
from pantile.paddle.compiled import CompiledProgram
from pantile.paddle.session import need_session

_COMPILED: weakref.WeakKeyDictionary[Any, CompiledProgram] = weakref.WeakKeyDictionary()


def remember(program: Any, compiled: CompiledProgram) -> None:
    """Note what a Paddle program stands for."""
    _COMPILED[program] = compiled


def compiled_of(program: Any) -> CompiledProgram | None:
    """What a Paddle program stands for; None for an ordinary one."""
    try:
        return _COMPILED.get(program)
    except TypeError:  # not an object one can refer to weakly: certainly not one of ours
        return None


def software_ipus() -> int:
    """How many IPUs scripts may use: `PANTILE_PADDLE_IPUS`, 16 by default."""
    written = os.environ.get("PANTILE_PADDLE_IPUS", "16")
    if not written.isdigit() or not int(written):
        raise OptionError(f"PANTILE_PADDLE_IPUS={written!r}", fix="set it to a positive number")
    return int(written)


class IpuBackend:
    """The process-wide object that scripts know as `_backend`: it holds the latest session."""

    _instance: IpuBackend | None = None

    def __init__(self) -> None:
        self.compiled: CompiledProgram | None = None
        self.scope: Any = None
        self.strategy: Any = None

    @classmethod
    def get_instance(cls) -> IpuBackend:
        """The only one."""
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def set_scope(self, scope: Any) -> None:
        """Note the scope of the next compilation."""
        self.scope = scope

    def set_ipu_strategy(self, strategy: Any) -> None:
        """Note the strategy of the next compilation."""
        self.strategy = strategy

    def weights_to_host(self) -> None:
        """Give the scope the weights of the program that was compiled last."""
        session = self.compiled.session if self.compiled is not None else None
        need_session(session, "weights_to_host").weights_to_host()

    def detach(self) -> None:
        """Release the device. The host's memory is the device here: nothing to do."""

    def reset(self) -> None:
        """Forget the compiled program."""
        self.compiled = self.scope = self.strategy = None

    def save_model_proto(self, path: str) -> None:
        """Graphcore's file of a compiled model cannot be written."""
        logger.warning(
            "save_model_proto(%r) writes nothing: there is no PopART model. "
            "paddle.static.save_inference_model saves the program.",
            path,
        )


def place_class(core: Any) -> Any:
    """A place that says it is an IPU; Paddle's C++ sees the CPU place it derives from."""

    class IPUPlace(core.CPUPlace):  # type: ignore[misc]
        """Device 0 of the software IPUs; tensors live on the host."""

        def __init__(self, *_: Any) -> None:
            super().__init__()

        def __repr__(self) -> str:
            return "Place(ipu:0)"

        __str__ = __repr__

    return IPUPlace
