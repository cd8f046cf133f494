"""Every option of `IpuStrategy.set_options`: name, type, default, and what it does here.

    Effect.RUNS      it decides what is computed, or how often
    Effect.PLACES    it speaks of stages, devices and memory: kept for the scheduler and reports
    Effect.HARDWARE  it tunes or instruments Graphcore's compiler or device: kept, no effect

The defaults of options that belong to PopART are its own: outlining and prefetching are on, most
other switches are off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

UNSET_SEED = 2**64 - 1


class Effect(Enum):
    """What an option does here."""

    RUNS = "runs"
    PLACES = "places"
    HARDWARE = "hardware"


@dataclass(frozen=True)
class StrategyOption:
    """One option. `choices` is how many values an enumeration has, `words` are those of a text."""

    name: str
    type: str
    default: Any
    effect: Effect = Effect.HARDWARE
    choices: int | None = None
    words: tuple[str, ...] | None = None


_RUNS: tuple[tuple[str, str, Any], ...] = (
    ("is_training", "bool", True),
    ("enable_fp16", "bool", False),
    ("is_dynamic", "bool", False),
    ("enable_model_runtime_executor", "bool", False),
    ("runtime_options.enable_eval", "bool", False),
    ("enable_gradient_accumulation", "bool", False),
    ("enable_replicated_graphs", "bool", False),
    ("use_no_bias_optimizer", "bool", False),
    ("enable_floating_point_checks", "bool", False),
    ("enable_stochastic_rounding", "bool", False),
    ("batches_per_step", "uint64", 1),
    ("micro_batch_size", "uint64", 1),
    ("accumulation_factor", "uint64", 1),
    ("replicated_graph_count", "uint64", 1),
    ("random_seed", "uint64", UNSET_SEED),
    ("timeout_ms", "double", 0.0),
    ("loss_scaling", "double", 1.0),
    ("max_weight_norm", "double", 65504.0),
    ("lr", "double", 0.0),
)
_PLACES: tuple[tuple[str, str, Any], ...] = (
    ("need_avg_shard", "bool", False),
    ("enable_manual_shard", "bool", False),
    ("enable_pipelining", "bool", False),
    ("num_ipus", "uint64", 1),
    ("tiles_per_ipu", "uint64", 4),
    ("available_memory_proportion", "double", 0.0),
)
_ON = (
    "compile_engine",
    "enable_fully_connected_pass",
    "enable_merge_exchange",
    "enable_non_stable_softmax",
    "enable_outlining",
    "enable_outlining_copy_cost_pruning",
    "enable_prefetch_datastreams",
    "group_norm_strided_channel_grouping",
    "opx_alias_checking",
    "opx_modify_checking",
    "rearrange_anchors_on_host",
    "strict_op_versions",
)
_OFF = (
    "alias_zero_copy",
    "automatic_loss_scaling_settings.enabled",
    "batch_serialization_settings.concat_on_execution_phase_change",
    "batch_serialization_settings.concat_on_pipeline_stage_change",
    "batch_serialization_settings.concat_on_virtual_graph_change",
    "constant_weights",
    "decompose_grad_sum",
    "delay_var_updates",
    "disable_grad_accumulation_tensor_streams",
    "dot_op_names",
    "enable_distributed_replicated_graphs",
    "enable_distribution",
    "enable_engine_caching",
    "enable_explicit_main_loops",
    "enable_half_partial",
    "enable_serialized_matmuls",
    "enable_stable_norm",
    "enable_supported_data_type_casting",
    "explicit_recomputation",
    "export_poplar_computation_graph",
    "export_poplar_vertex_graph",
    "group_host_sync",
    "instrument_with_hardware_cycle_counter",
    "scaled_optimizer_state",
    "schedule_non_weight_update_gradient_consumers_early",
    "separate_call_op_pdfs",
    "use_host_copy_ops",
)
_INTEGERS: tuple[tuple[str, int], ...] = (
    ("batch_serialization_settings.factor", 0),
    ("compilation_progress_total", 100),
    ("default_prefetch_buffering_depth", 1),
    ("execution_phase_settings.phases", 0),
    ("execution_phase_settings.stages", 2),
    ("final_dot_op", 10000),
    ("first_dot_op", 0),
    ("global_replica_offset", 0),
    ("global_replication_factor", 1),
    ("loose_threshold_at_peak", 8000),
    ("merge_var_update_mem_threshold", 1000000),
    ("num_buffers", 10),
    ("num_io_tiles", 0),
    ("swap_limit_scheduler", 1000000000),
    ("transitive_closure_optimization_threshold", 100000),
)
_ENUMERATIONS: tuple[tuple[str, int, int], ...] = (
    # name, default, how many values there are
    ("accumulation_and_replication_reduction_type", 1, 3),
    ("auto_recomputation", 0, 6),
    ("autodiff_settings.stitch_strategy", 0, 4),
    ("batch_serialization_settings.batch_schedule", 0, 4),
    ("batch_serialization_settings.method", 0, 3),
    ("batch_serialization_settings.transform_context", 0, 3),
    ("mean_accumulation_and_replication_reduction_strategy", 1, 3),
    ("merge_var_update", 0, 4),
    ("subgraph_copying_strategy", 0, 3),
    ("synthetic_data_mode", 0, 4),
    ("virtual_graph_mode", 0, 5),
)
_DOUBLES: tuple[tuple[str, float], ...] = (
    ("automatic_loss_scaling_settings.bin_edge_location", 0.125),
    ("automatic_loss_scaling_settings.threshold_upper_count_proportion", 1e-7),
    ("outline_sequence_break_cost", 10000.0),
    ("outline_threshold", 1.0),
    ("time_limit_scheduler", 1e9),
)
_TEXTS: tuple[tuple[str, str], ...] = (
    ("cache_path", "session_cache"),
    ("custom_codelet_compile_flags", ""),
    ("kahn_tie_breaker", "greedy"),
    ("log_dir", "./"),
    ("onnx_dump_path", ""),
    ("partials_type_matmuls", ""),
    ("serialized_poprithms_shift_graphs_dir", ""),
)
_TYPES = ("FLOAT", "FLOAT16")
_WORDS: tuple[tuple[str, Effect, tuple[str, ...]], ...] = (
    # the first word is the default
    ("accl1_type", Effect.RUNS, _TYPES),
    ("accl2_type", Effect.RUNS, _TYPES),
    ("accl3_type", Effect.HARDWARE, _TYPES),
    ("weight_decay_mode", Effect.RUNS, ("", "decay", "l2_regularization")),
)
_LISTS = ("custom_codelets", "custom_ops", "dot_checks", "hardware_instrumentations")
_MAPS = (
    "convolution_options",
    "engine_options",
    "gcl_options",
    "lstm_options",
    "report_options",
)

WRITE_ONLY = frozenset(
    {
        "accumulate_outer_fragment",
        "location_accumulator",
        "location_activation",
        "location_optimizer",
        "location_weight",
        "replicated_collectives_settings",
    }
)
"""Groups of settings that can be given and not read."""

DOT_CHECKS = frozenset({"Fwd0", "Fwd1", "Bwd0", "PreAlias", "Final"})
LOCATION_KEYS = frozenset(
    {
        "on_chip",
        "use_replicated_tensor_sharding",
        "use_io_tiles_to_load",
        "use_io_tiles_to_store",
        "min_elements_for_off_chip",
        "min_elements_for_replicated_tensor_sharding",
        "sharding_domain_with_all",
        "sharding_domain_with_consecutive",
        "sharding_domain_with_orthogonal",
    }
)


def _table() -> Mapping[str, StrategyOption]:
    found = [
        *(StrategyOption(*entry, Effect.RUNS) for entry in _RUNS),
        *(StrategyOption(*entry, Effect.PLACES) for entry in _PLACES),
        *(StrategyOption(name, "bool", True) for name in _ON),
        *(StrategyOption(name, "bool", False) for name in _OFF),
        *(StrategyOption(name, "uint64", default) for name, default in _INTEGERS),
        *(StrategyOption(n, "uint64", default, choices=c) for n, default, c in _ENUMERATIONS),
        *(StrategyOption(name, "double", default) for name, default in _DOUBLES),
        *(StrategyOption(name, "string", default) for name, default in _TEXTS),
        *(StrategyOption(n, "string", w[0], effect, words=w) for n, effect, w in _WORDS),
        *(StrategyOption(name, "vector", ()) for name in _LISTS),
        *(StrategyOption(name, "map", ()) for name in _MAPS),
    ]
    return MappingProxyType({option.name: option for option in found})


STRATEGY_OPTIONS = _table()
"""The options that can be read back, by name."""
