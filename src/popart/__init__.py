"""What `import popart` finds: the constants that PopTorch scripts pass to `_Popart.set`.

They are numbers to be stored; nothing here compiles or runs anything. If a real popart can be
imported from elsewhere on the path, this package steps aside for it.
"""

import sys

from popart import _elsewhere
from popart.constants import *  # noqa: F403
from popart.constants import __all__ as __all__

_real = _elsewhere.find(__name__, __file__)
if _real is not None:
    sys.modules[__name__] = _elsewhere.load(_real)
