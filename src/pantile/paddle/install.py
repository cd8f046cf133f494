"""Put the IPU API into the stock Paddle wheel, and take it out again.

The stock wheel has the Python classes (`IpuStrategy`, `IpuCompiledProgram`, `ipu_shard_guard`, …)
and lacks the C++ objects under them. `install` supplies those; every replaced attribute is noted,
so that `uninstall` leaves Paddle as it was.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pantile.paddle import dygraph, fluid, inference_config
from pantile.paddle.backend import (
    IpuBackend,
    compiled_of,
    place_class,
    remember,
    software_ipus,
)
from pantile.paddle.compiled import compile_program
from pantile.paddle.custom_sources import without_graphcore_libraries, without_popart
from pantile.paddle.patches import Patches
from pantile.paddle.strategy import StrategyValues
from pantile.paddle.wheel import names_of, require_paddle

_lock = threading.RLock()
_patches: Patches | None = None


def is_installed() -> bool:
    """Whether Paddle has the IPU API now."""
    return _patches is not None


def install() -> None:
    """Give the stock wheel the IPU API; does nothing if it has it already."""
    global _patches
    with _lock:
        if _patches is not None:
            return
        paddle = require_paddle()
        patches = Patches()
        try:
            _install_core(paddle, patches)
            _install_programs(paddle, patches)
            _install_device_names(paddle, patches)
            inference_config.install(paddle, patches)
            dygraph.install(paddle, patches)
            fluid.install(paddle, patches)
        except BaseException:
            patches.undo()
            raise
        _patches = patches


def uninstall() -> None:
    """Leave Paddle as it was before `install`; does nothing if it is so."""
    global _patches
    with _lock:
        if _patches is not None:
            _patches.undo()
            _patches = None


@contextmanager
def installed() -> Iterator[None]:
    """The IPU API inside the scope; afterwards Paddle is as it was before."""
    before = is_installed()
    install()
    try:
        yield
    finally:
        if not before:
            uninstall()


def _install_core(paddle: Any, patches: Patches) -> None:
    core = paddle.base.core
    patches.put(core, "is_compiled_with_ipu", lambda: True)
    patches.put(core, "get_ipu_device_count", software_ipus)
    patches.put(core, "IpuStrategy", StrategyValues)
    patches.put(core, "IpuBackend", IpuBackend)
    place = place_class(core)
    for module in (core, paddle, paddle.base, paddle.framework):
        patches.put(module, "IPUPlace", place)


def _install_programs(paddle: Any, patches: Patches) -> None:
    compiled_class = paddle.static.IpuCompiledProgram
    stock_init, stock_run = compiled_class.__init__, paddle.static.Executor.run

    @functools.wraps(stock_init)
    def init(self: Any, program: Any = None, scope: Any = None, ipu_strategy: Any = None) -> None:
        # The stock class reads an attribute of the argument even when it is None.
        strategy = paddle.static.IpuStrategy() if ipu_strategy is None else ipu_strategy
        stock_init(self, program, scope, strategy)

    @functools.wraps(stock_run)
    def run(self: Any, program: Any = None, *args: Any, **kwargs: Any) -> Any:
        if compiled_of(program) is None:
            return stock_run(self, program, *args, **kwargs)
        return _run_compiled(paddle, program, *args, **kwargs)

    patches.put(compiled_class, "__init__", init)
    patches.put(compiled_class, "compile", _compile)
    patches.put(paddle.static.Executor, "run", run)


def _compile(self: Any, feed_list: Any, fetch_list: Any) -> Any:
    """Compile the program; returns a Paddle program that stands for the compiled one."""
    paddle = require_paddle()
    compiled = compile_program(
        self._program,
        feed_list,
        fetch_list,
        strategy=self._ipu_strategy,
        scope=self._scope,
    )
    self._backend.set_scope(self._scope)
    self._backend.set_ipu_strategy(self._ipu_strategy._ipu_strategy)
    self._backend.compiled = compiled
    program = _stand_in(paddle, self._program, [*compiled.feeds, *compiled.fetches])
    remember(program, compiled)
    self._ipu_strategy.need_compile = False
    return program


def _stand_in(paddle: Any, original: Any, names: list[str]) -> Any:
    """A program with the variables a script may ask for, and no operators."""
    program = paddle.static.Program()
    block, old = program.global_block(), original.global_block()
    scheduler = getattr(original, "lr_scheduler", None)
    if scheduler is not None:
        names = [*names, scheduler._var_name]
        program.lr_scheduler = scheduler
    for name in dict.fromkeys(names):
        source = old.var(name)
        block.create_var(
            name=name,
            shape=source.shape,
            dtype=source.dtype,
            persistable=source.persistable,
            stop_gradient=True,
        )
    program.org_program = original
    return program


def _run_compiled(
    paddle: Any,
    program: Any,
    feed: Any = None,
    fetch_list: Any = None,
    feed_var_name: str = "feed",
    fetch_var_name: str = "fetch",
    scope: Any = None,
    return_numpy: bool = True,
    **_: Any,
) -> Any:
    """`Executor.run` of a compiled program."""
    compiled = compiled_of(program)
    assert compiled is not None
    if os.environ.get("IPU_COMPILE_ONLY"):
        return []
    results = compiled.run(feed or {}, names_of(fetch_list))
    if return_numpy:
        return results
    tensors = [paddle.base.core.LoDTensor() for _ in results]
    for tensor, result in zip(tensors, results, strict=True):
        tensor.set(result, paddle.CPUPlace())
    return tensors


def _install_device_names(paddle: Any, patches: Patches) -> None:
    stock_get, stock_set = paddle.device.get_device, paddle.device.set_device
    stock_check, stock_load = paddle.utils.run_check, paddle.utils.cpp_extension.load
    chosen: dict[str, bool] = {}

    @functools.wraps(stock_get)
    def get_device() -> str:
        place = paddle.framework._current_expected_place()
        if isinstance(place, paddle.IPUPlace) or chosen.get("ipu"):
            return f"ipus:{{0-{software_ipus() - 1}}}"
        return str(stock_get())

    @functools.wraps(stock_set)
    def set_device(device: str) -> Any:
        place = stock_set(device)
        chosen["ipu"] = device == "ipu"
        return place

    @functools.wraps(stock_check)
    def run_check() -> None:
        stock_check()
        print(f"PaddlePaddle works on {software_ipus()} software IPUs (Pantile).")

    @functools.wraps(stock_load)
    def load(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("extra_ldflags"):
            kwargs["extra_ldflags"] = without_graphcore_libraries(kwargs["extra_ldflags"])
        return stock_load(name, without_popart(sources), *args, **kwargs)

    for module in (paddle, paddle.device):
        patches.put(module, "get_device", get_device)
        patches.put(module, "set_device", set_device)
    patches.put(paddle.utils, "run_check", run_check)
    patches.put(paddle.utils.cpp_extension, "load", load)
    patches.put(sys.modules["paddle.utils.cpp_extension.cpp_extension"], "load", load)
