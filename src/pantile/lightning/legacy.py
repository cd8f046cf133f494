"""Scripts of Lightning 1.x: `Trainer(ipus=8, plugins=IPUPlugin(device_iterations=32))`.

ipus=8                            accelerator="ipu", devices=8
plugins=IPUPlugin(...)            strategy=IPUStrategy(...)
convert_model_to_half=True        precision="16-true"
checkpoint_callback=False         enable_checkpointing=False
weights_summary=None              enable_model_summary=False
progress_bar_refresh_rate=0       enable_progress_bar=False
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from pantile.lightning.namespaces import Namespace
from pantile.lightning.precision import precision_class
from pantile.lightning.register import register
from pantile.lightning.strategy import IPUStrategyMembers, strategy_class

_RENAMED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "checkpoint_callback": ("enable_checkpointing", bool),
    "weights_summary": ("enable_model_summary", lambda value: value is not None),
    "progress_bar_refresh_rate": ("enable_progress_bar", bool),
    "terminate_on_nan": ("detect_anomaly", bool),
}
_GONE = ("flush_logs_every_n_steps", "prepare_data_per_node", "process_position", "log_gpu_memory")


class TrainerMembers:
    """The members of `Trainer`, for either namespace."""

    namespace: Namespace

    def __init__(self, *args: Any, ipus: int | None = None, **kwargs: Any) -> None:
        register(self.namespace)
        if ipus is not None:
            kwargs.setdefault("accelerator", "ipu")
            kwargs.setdefault("devices", ipus)
        for old, (new, convert) in _RENAMED.items():
            if old in kwargs:
                kwargs.setdefault(new, convert(kwargs.pop(old)))
        for name in _GONE:
            kwargs.pop(name, None)
        self._move_plugin(kwargs)
        super().__init__(*args, **kwargs)

    @staticmethod
    def _move_plugin(kwargs: dict[str, Any]) -> None:
        """A strategy among the plugins becomes the strategy."""
        plugins = kwargs.get("plugins")
        given = plugins if isinstance(plugins, (list, tuple)) else [plugins]
        found = [plugin for plugin in given if isinstance(plugin, IPUStrategyMembers)]
        if found:
            kwargs["strategy"] = found[0]
            rest = [p for p in given if p is not None and p is not found[0]]
            kwargs["plugins"] = rest or None


class IPUPluginMembers:
    """What `IPUPlugin` took beyond `IPUStrategy`."""

    namespace: Namespace

    def __init__(self, *args: Any, convert_model_to_half: bool = False, **kwargs: Any) -> None:
        if convert_model_to_half:
            kwargs.setdefault("precision_plugin", precision_class(self.namespace)("16-true"))
        super().__init__(*args, **kwargs)


@cache
def trainer_class(namespace: Namespace) -> Any:
    """`Trainer` for one namespace, taking the arguments of 1.x too."""
    base = namespace.find("trainer.trainer:Trainer")
    return type("Trainer", (TrainerMembers, base), {"namespace": namespace, "__module__": __name__})


@cache
def plugin_class(namespace: Namespace) -> Any:
    """`IPUPlugin` for one namespace."""
    bases = (IPUPluginMembers, strategy_class(namespace))
    return type("IPUPlugin", bases, {"namespace": namespace, "__module__": __name__})
