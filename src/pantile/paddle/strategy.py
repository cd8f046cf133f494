"""`IpuStrategy`: everything a script says about how its program is to be run.

`StrategyValues` is the object that Paddle's own `paddle.static.IpuStrategy` holds as
`_ipu_strategy` (in a wheel built for IPUs it is written in C++). `IpuStrategy` here is for scripts
that do not want Paddle to be changed; it has the same methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pantile.errors import OptionError, OptionRangeError, combined
from pantile.paddle.session import Settings
from pantile.paddle.strategy_options import (
    DOT_CHECKS,
    LOCATION_KEYS,
    STRATEGY_OPTIONS,
    UNSET_SEED,
    WRITE_ONLY,
    StrategyOption,
)
from pantile.paddle.update_modes import UpdateModes

_PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "uint64": (int,),
    "double": (float,),
    "string": (str,),
    "vector": (list, set, tuple),
    "map": (dict,),
}
Logger = Callable[[int, int], None]


class StrategyValues:
    """The values of all options, checked as they are set."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {
            name: _fresh(option) for name, option in STRATEGY_OPTIONS.items()
        }
        self._groups: dict[str, dict[str, Any]] = {}
        self._patterns: dict[str, bool] = {}
        self.progress_logger: Logger | None = None

    def set_options(self, options: Mapping[str, Any]) -> None:
        """Set several options; nothing is set if one of them is wrong."""
        for name, value in options.items():
            self._check(name, value)
        for name, value in options.items():
            self._set(name, value)

    def _check(self, name: str, value: Any) -> None:
        if name == "compilation_progress_logger":
            if not callable(value):
                raise _wrong(name, value, "a function of (progress, total)")
        elif name == "custom_op" or name in WRITE_ONLY:
            if not isinstance(value, dict):
                raise _wrong(name, value, "a dict")
            unknown = value.keys() - LOCATION_KEYS if name.startswith("location_") else ()
            if unknown:
                raise _unknown(f"{name}: {', '.join(sorted(unknown))}")
        elif name not in STRATEGY_OPTIONS:
            raise _unknown(name)
        else:
            _check_value(STRATEGY_OPTIONS[name], value)

    def _set(self, name: str, value: Any) -> None:
        if name == "compilation_progress_logger":
            self.progress_logger = value
        elif name == "custom_op":
            self._values["custom_ops"].append(dict(value))
        elif name in WRITE_ONLY:
            self._groups.setdefault(name, {}).update(value)
        elif STRATEGY_OPTIONS[name].type == "vector":  # appended to, never replaced
            self._values[name].extend(str(item) for item in value)
        elif STRATEGY_OPTIONS[name].type == "map":  # what is there stays
            for key, item in value.items():
                self._values[name].setdefault(str(key), str(item))
        else:
            self._values[name] = value

    def get_option(self, name: str) -> dict[str, Any]:
        """An option as Paddle shows it: name, type, value, value as text."""
        if name not in STRATEGY_OPTIONS:
            raise _unknown(name)
        value = self._values[name]
        kind = STRATEGY_OPTIONS[name].type
        return {"name": name, "type": kind, "value": value, "value_s": str(value)}

    def value(self, name: str) -> Any:
        """The value of an option."""
        return self._values[name]

    def get_all_option_names(self) -> list[str]:
        """The names of all options that can be read."""
        return sorted(STRATEGY_OPTIONS)

    def enable_pattern(self, pattern: str) -> None:
        """Switch a pattern of Graphcore's compiler on; kept, without effect."""
        self._patterns[pattern] = True

    def disable_pattern(self, pattern: str) -> None:
        """Switch a pattern of Graphcore's compiler off; kept, without effect."""
        self._patterns[pattern] = False

    def is_pattern_enabled(self, pattern: str) -> bool:
        """Whether a pattern was left on."""
        return self._patterns.get(pattern, True)

    def settings(self) -> Settings:
        """What of this decides how a program is run."""
        value = self.value
        seed = value("random_seed")
        return Settings(
            training=value("is_training"),
            micro_batch=value("micro_batch_size"),
            batches_per_step=value("batches_per_step"),
            accumulation=(
                value("accumulation_factor") if value("enable_gradient_accumulation") else None
            ),
            replicas=(
                value("replicated_graph_count") if value("enable_replicated_graphs") else None
            ),
            mean_gradients=value("accumulation_and_replication_reduction_type") == 1,
            loss_scaling=value("loss_scaling"),
            seed=None if seed == UNSET_SEED else seed,
            sharded=value("enable_manual_shard") or value("need_avg_shard"),
            pipelined=value("enable_pipelining"),
            devices=value("num_ipus"),
            shows_progress=self.progress_logger is None,
            checks_numbers=value("enable_floating_point_checks"),
            rounds_at_random=value("enable_stochastic_rounding"),
            dynamic_batch=value("timeout_ms") > 0 and value("enable_model_runtime_executor"),
            modes=UpdateModes(
                without_bias=value("use_no_bias_optimizer"),
                decay=value("weight_decay_mode"),
                largest_norm=value("max_weight_norm"),
                half_moments=(
                    value("accl1_type") == "FLOAT16",
                    value("accl2_type") == "FLOAT16",
                ),
            ),
        )

    def replicas_of_all(self) -> int | None:
        """The replicas of all processes of a run; None if each process has its own program."""
        if not self.value("enable_distributed_replicated_graphs"):
            return None
        return int(self.value("global_replication_factor"))

    def learning_rate(self) -> float | None:
        """The rate of a dygraph program; a static one has its rates in the scope."""
        return float(self.value("lr")) if self.value("is_dynamic") else None


class IpuStrategy:
    """The options of a program, for `api.compile`; the methods are those of Paddle's class."""

    def __init__(self) -> None:
        self._ipu_strategy = StrategyValues()
        self.custom_op_names: list[str] = []
        self.need_compile = True
        self.set_options(
            {
                "location_optimizer": {"on_chip": 0, "use_replicated_tensor_sharding": 1},
                "accumulation_and_replication_reduction_type": 1,
                "mean_accumulation_and_replication_reduction_strategy": 1,
            }
        )

    def set_graph_config(
        self,
        num_ipus: int = 1,
        is_training: bool = True,
        micro_batch_size: int = 1,
        enable_manual_shard: bool = False,
    ) -> None:
        """Set what is compiled. Sharding by hand needs more than one IPU."""
        if num_ipus == 1 and enable_manual_shard:
            raise combined(OptionError, RuntimeError)(
                "set_graph_config: enable_manual_shard=True with num_ipus=1",
                fix="set num_ipus to more than 1, or enable_manual_shard=False",
            )
        self.set_options(
            {
                "num_ipus": num_ipus,
                "is_training": is_training,
                "micro_batch_size": micro_batch_size,
                "enable_manual_shard": enable_manual_shard,
            }
        )

    def set_pipelining_config(
        self,
        enable_pipelining: bool = False,
        batches_per_step: int = 1,
        enable_gradient_accumulation: bool = False,
        accumulation_factor: int = 1,
    ) -> None:
        """Set how many micro-batches a run takes. Pipelining needs sharding by hand."""
        if enable_pipelining and not self.get_option("enable_manual_shard"):
            raise combined(OptionError, RuntimeError)(
                "set_pipelining_config: enable_pipelining=True without enable_manual_shard",
                fix="call set_graph_config(num_ipus=…, enable_manual_shard=True) before",
            )
        self.set_options(
            {
                "enable_pipelining": enable_pipelining,
                "batches_per_step": batches_per_step,
                "enable_gradient_accumulation": enable_gradient_accumulation,
                "accumulation_factor": accumulation_factor,
            }
        )

    def set_precision_config(self, enable_fp16: bool = False) -> None:
        """Ask for half precision in inference."""
        self.set_options({"enable_fp16": enable_fp16})

    def add_custom_op(
        self,
        paddle_op: str,
        popart_op: str | None = None,
        domain: str = "custom.ops",
        version: int = 1,
    ) -> None:
        """Name a custom operator; its torch function comes from `register_operator`."""
        names = {"paddle_op": paddle_op, "popart_op": popart_op or paddle_op, "domain": domain}
        self.set_options({"custom_op": {**names, "version": version}})
        self.custom_op_names.append(paddle_op)

    def set_options(self, options: Mapping[str, Any]) -> None:
        """Set options by name."""
        self._ipu_strategy.set_options(options)
        self.need_compile = self.need_compile or bool(options.keys() - {"lr"})

    def get_option(self, name: str) -> Any:
        """The value of an option."""
        return self._ipu_strategy.get_option(name)["value"]

    def enable_pattern(self, pattern: str) -> None:
        """Switch a pattern of Graphcore's compiler on; kept, without effect."""
        self._ipu_strategy.enable_pattern(pattern)

    def disable_pattern(self, pattern: str) -> None:
        """Switch a pattern of Graphcore's compiler off; kept, without effect."""
        self._ipu_strategy.disable_pattern(pattern)

    @property
    def num_ipus(self) -> int:
        """How many IPUs the program is for."""
        return int(self.get_option("num_ipus"))

    @property
    def is_training(self) -> bool:
        """Whether the program is trained."""
        return bool(self.get_option("is_training"))

    @property
    def enable_pipelining(self) -> bool:
        """Whether the stages work side by side."""
        return bool(self.get_option("enable_pipelining"))

    @property
    def enable_fp16(self) -> bool:
        """Whether half precision was asked for."""
        return bool(self.get_option("enable_fp16"))


def _fresh(option: StrategyOption) -> Any:
    return {"vector": [], "map": {}}.get(option.type, option.default)


def _check_value(option: StrategyOption, value: Any) -> None:
    kinds: Any = _PYTHON_TYPES[option.type]
    if not isinstance(value, kinds) or (option.type == "uint64" and isinstance(value, bool)):
        raise _wrong(option.name, value, f"a {kinds[0].__name__}")
    if option.type == "uint64" and value < 0:
        raise OptionRangeError(f"{option.name}={value} is negative", fix="pass 0 or more")
    if option.choices is not None and value >= option.choices:
        raise OptionRangeError(
            f"{option.name}={value}: there are {option.choices} choices",
            fix=f"pass a number from 0 to {option.choices - 1}",
        )
    if option.words is not None and value not in option.words:
        raise OptionError(
            f"InvalidArgument: option {option.name!r} is {value!r}",
            fix=f"pass one of {', '.join(repr(word) for word in option.words)}",
        )
    if option.name == "dot_checks" and (unknown := {*value} - DOT_CHECKS):
        raise _wrong(option.name, ", ".join(sorted(unknown)), f"of {sorted(DOT_CHECKS)}")
    if option.name in ("batches_per_step", "micro_batch_size", "accumulation_factor") and not value:
        raise OptionRangeError(f"{option.name}=0", fix="pass 1 or more")


def _wrong(name: str, value: Any, wanted: str) -> OptionError:
    return OptionError(
        f"InvalidArgument: option {name!r} is {value!r}, a {type(value).__name__}",
        fix=f"pass {wanted}",
    )


def _unknown(name: str) -> OptionError:
    return OptionError(
        f"InvalidArgument: cannot find option {name!r}",
        fix="get_all_option_names() of IpuStrategy()._ipu_strategy lists the options",
    )
