"""Make `accelerator="ipu"` known to Lightning.

Lightning 2.6 lets anyone register an accelerator and a strategy by name, but chooses the strategy
of an accelerator it does not know as for a CPU: eager, or eight processes; and mixed precision as
for a GPU. Two methods are therefore wrapped, so that our accelerator gets our strategy, and our
strategy our precision. `unregister` undoes all of it.
"""

from __future__ import annotations

from typing import Any

from pantile.lightning.accelerator import IPUAcceleratorMembers, accelerator_class
from pantile.lightning.namespaces import Namespace, default_namespace
from pantile.lightning.precision import precision_class
from pantile.lightning.strategy import IPUStrategyMembers, strategy_class

_CONNECTOR = "trainer.connectors.accelerator_connector:_AcceleratorConnector"
_originals: dict[str, Any] = {}


def register(namespace: Namespace | None = None) -> None:
    """Register with one copy of Lightning; a second time does nothing."""
    namespace = namespace or default_namespace()
    if namespace.name in _originals:
        return
    accelerators = namespace.find("accelerators:AcceleratorRegistry")
    strategies = namespace.find("strategies:StrategyRegistry")
    accelerator_class(namespace).register_accelerators(accelerators)
    strategy = strategy_class(namespace)
    strategy.register_strategies(strategies)
    connector = namespace.find(_CONNECTOR)
    choose, precise = connector._choose_strategy, connector._check_and_init_precision
    _originals[namespace.name] = (choose, precise)

    def _choose_strategy(self: Any) -> Any:
        if isinstance(self.accelerator, IPUAcceleratorMembers):
            return strategy.strategy_name
        return choose(self)

    def _check_and_init_precision(self: Any) -> Any:
        if isinstance(self.strategy, IPUStrategyMembers) and self._precision_plugin_flag is None:
            return precision_class(namespace)(self._precision_flag)
        return precise(self)

    connector._choose_strategy = _choose_strategy
    connector._check_and_init_precision = _check_and_init_precision


def unregister(namespace: Namespace | None = None) -> None:
    """Leave Lightning as it was."""
    namespace = namespace or default_namespace()
    originals = _originals.pop(namespace.name, None)
    if originals is None:
        return
    connector = namespace.find(_CONNECTOR)
    connector._choose_strategy, connector._check_and_init_precision = originals
    namespace.find("accelerators:AcceleratorRegistry").pop("ipu", None)
    for name in ("ipu_strategy", "ipu_debug"):
        namespace.find("strategies:StrategyRegistry").pop(name, None)
