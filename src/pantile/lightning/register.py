"""Make `accelerator="ipu"` known to Lightning.

Lightning 2.6 lets anyone register an accelerator and a strategy by name, but chooses the strategy
of an accelerator it does not know as for a CPU: eager, or eight processes. One method is therefore
wrapped, so that our accelerator gets our strategy. `unregister` undoes all of it.
"""

from __future__ import annotations

from typing import Any

from pantile.lightning.accelerator import IPUAcceleratorMembers, accelerator_class
from pantile.lightning.namespaces import Namespace, default_namespace
from pantile.lightning.strategy import strategy_class

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
    strategies.register("ipu_strategy", strategy, "Steps as compiled programs", override=True)
    connector = namespace.find(_CONNECTOR)
    _originals[namespace.name] = original = connector._choose_strategy

    def _choose_strategy(self: Any) -> Any:
        if isinstance(self.accelerator, IPUAcceleratorMembers):
            return strategy.strategy_name
        return original(self)

    connector._choose_strategy = _choose_strategy


def unregister(namespace: Namespace | None = None) -> None:
    """Leave Lightning as it was."""
    namespace = namespace or default_namespace()
    original = _originals.pop(namespace.name, None)
    if original is None:
        return
    namespace.find(_CONNECTOR)._choose_strategy = original
    namespace.find("accelerators:AcceleratorRegistry").pop("ipu", None)
    namespace.find("strategies:StrategyRegistry").pop("ipu_strategy", None)
