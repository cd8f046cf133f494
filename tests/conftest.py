"""What every test starts from: private caches, no ambient options, reference engine, one thread.

The environment is set before torch is imported, because torch and Pantile read some of it then.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator

_caches = tempfile.mkdtemp(prefix="pantile-tests-")
atexit.register(shutil.rmtree, _caches, ignore_errors=True)

for _name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "XDG_CACHE_HOME", "HF_HOME"):
    os.environ[_name] = os.path.join(_caches, _name.lower())
for _name in [name for name in os.environ if name.startswith(("POPTORCH_", "PANTILE_"))]:
    if _name != "PANTILE_TEST_WORKERS":
        del os.environ[_name]
# Most tests compare eager's bits, which the reference engine has; tests/native asks for the other.
os.environ["PANTILE_ENGINE"] = "reference"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"  # client models are built from configurations, never downloaded

import pytest  # noqa: E402
import torch  # noqa: E402
from tests.clients.torchvision_ops import declare_missing_ops  # noqa: E402

# Whoever imports torchvision next: torchmetrics does, also where xdist only collects warnings.
declare_missing_ops()


@pytest.fixture(autouse=True)
def known_torch_state() -> Iterator[None]:
    """Give each test one thread (more threads change the last bits), float32 and seed 0."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
