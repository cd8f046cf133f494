"""One lock for everything that runs torch's tracer.

While `make_fx` runs, torch exchanges methods of `torch.nn.Module` and remembers in a variable of
the process how to put them back. Two traces at a time, say a capture and a compilation in the
background, put back each other's, or fail because nothing is left to put back.
"""

import threading

TRACER_LOCK = threading.RLock()
