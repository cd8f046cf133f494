"""The compiled short way of a call (lane.cpp): loaded if it is there, else built in the background.

It makes calls shorter by some microseconds and changes nothing else, so nobody waits for it: its
compilation takes a few seconds, once per machine. Without a compiler, without the headers of Python
or torch, or with a torch whose tensors look different, calls stay in Python.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import sys
import sysconfig
import threading
from pathlib import Path
from typing import Any

import torch

from pantile.errors import CompilerMissing, Error
from pantile.logging import logger
from pantile.runtime.native.kept_library import KeptLibrary

_NAME = "pantile_lane"


class LaneLibrary:
    """Finds the library once, on the thread that asks first or on one of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._builder: threading.Thread | None = None
        self._asked = False
        self._library: KeptLibrary | None = None
        #: The extension module, when it is loaded.
        self.module: Any = None

    def load(self) -> None:
        """Load it if it was built before: some milliseconds, best spent before the first call."""
        with self._lock:
            self._load()

    def ask(self) -> None:
        """Load it if it was built before; else start to build it."""
        with self._lock:
            library = self._load()
            if library is not None and self.module is None and self._builder is None:
                self._builder = _Builder(
                    target=self._build, args=(library,), name="pantile-lane", daemon=True
                )
                self._builder.start()

    def _load(self) -> KeptLibrary | None:
        """What is to be built, if anything; what is there already is loaded."""
        if not self._asked:
            self._asked, self._library = True, _library()
            try:
                if self._library is not None:
                    self.module = self._library.kept(_load)
            except (Error, OSError, ImportError, RuntimeError) as error:
                self._library = None
                _tell(error)
        return self._library

    def wait(self) -> Any:
        """The extension module when its build is done; None if there is none."""
        self.ask()
        if self._builder is not None:
            self._builder.join()
        return self.module

    def _build(self, library: KeptLibrary) -> None:
        try:
            self.module = library.loaded(_load)
        except (Error, OSError, ImportError, RuntimeError) as error:
            _tell(error)


class _Builder(threading.Thread):
    """Builds. Whoever looks after threads that are left, as Lightning's tests do, may end it."""

    def stop(self) -> None:
        """Wait until it is done: it takes a few seconds, once per machine."""
        self.join()


LANE = LaneLibrary()


def _tell(error: Exception) -> None:
    """Not worth a warning: nothing is missing but microseconds."""
    text = str(error)
    if isinstance(error, CompilerMissing):
        text = text.partition("\n")[0]
    logger.debug("calls are prepared by Python: %s", text)


def _library() -> KeptLibrary | None:
    """What to build; None if headers are missing."""
    python = Path(sysconfig.get_paths()["include"])
    headers = Path(torch.__file__).parent / "include"
    if not (python / "Python.h").exists() or not (headers / "ATen" / "EmptyTensor.h").exists():
        logger.debug("calls are prepared by Python: there are no headers of Python and torch")
        return None
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    paths = ("-isystem", str(headers), "-isystem", str(python))
    return KeptLibrary(
        "lane",
        "short way of calls",
        ("lane.cpp",),
        ("-O2", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-w", abi, *paths),
        ("c10", "torch_cpu", "torch_python"),
        (sys.version, sysconfig.get_config_var("SOABI")),
    )


def _load(path: str) -> Any:
    loader = importlib.machinery.ExtensionFileLoader(_NAME, path)
    spec = importlib.util.spec_from_loader(_NAME, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    _show_tensors(module)
    return module


def _show_tensors(module: Any) -> None:
    """Let it find where the object of a tensor has the tensor; an error if that is not clear."""
    from pantile.lowering.handles import delete, handles_of

    examples = [torch.zeros(3), torch.ones((2, 2), dtype=torch.int64)]
    handles = handles_of(examples)
    try:
        for tensor, handle in zip(examples, handles, strict=True):
            module.find_tensor(torch._C.TensorBase, tensor, ctypes.c_void_p(handle).value)
    finally:
        delete(handles)
