"""The PopTorch optimizers: torch's update rules with an IPU's attributes.

variable_attributes.py   which hyper-parameters may change after compilation
optimizer.py             the mixin: device state, gradient clipping, copying
accumulators.py          state kept in another type than its parameter
sgd.py … lamb.py         one update rule a file
attributes.py            what an executor reads from any optimizer
supported.py             which optimizers an executor takes
"""

from pantile.optim.adam import Adam, AdamW
from pantile.optim.lamb import LAMB
from pantile.optim.optimizer import Optimizer, StateSource
from pantile.optim.rmsprop import RMSprop
from pantile.optim.sgd import SGD
from pantile.optim.variable_attributes import VariableAttributes

__all__ = [
    "LAMB",
    "SGD",
    "Adam",
    "AdamW",
    "Optimizer",
    "RMSprop",
    "StateSource",
    "VariableAttributes",
]
