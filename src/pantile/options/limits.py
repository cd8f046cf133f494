"""Rules that span several options: how many IPUs a model needs, and what inference allows.

IPUs per replica x R        default    strict
1 x 3                       3          refused: 3 is not a power of two
1 x 3, autoRoundNumIPUs     4          4
2 x 64                      128        refused: more than 64
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pantile.enums import ConnectionType
from pantile.errors import OptionError, PlacementError

if TYPE_CHECKING:
    from pantile.options.options import Options

MAX_IPUS = 64


def device_count(
    ipus_per_replica: int,
    replicas: int,
    *,
    strict: bool,
    auto_round: bool = False,
    any_count: bool = False,
) -> int:
    """How many IPUs a model takes, or a `PlacementError` if hardware could not give them.

    `any_count` lifts the power-of-two rule, as simulators and offline targets do.
    """
    needed = ipus_per_replica * replicas
    rounded = 1 << (needed - 1).bit_length()
    count = rounded if auto_round else needed
    if not strict:
        return count
    if count != rounded and not any_count:
        raise PlacementError(
            f"The model specifies the use of {needed} IPUs ({ipus_per_replica} per replica, "
            f"{replicas} replicas), but IPUs come in powers of two: the next is {rounded}",
            fix=f"reserve {rounded} with options.autoRoundNumIPUs(True), or leave strict mode",
        )
    if count > MAX_IPUS:
        raise PlacementError(
            f"Too many IPUs requested ({count}). Experiments that need more than {MAX_IPUS} take "
            "several processes",
            fix="lower options.replicationFactor, use fewer IPUs per replica, or leave strict mode",
        )
    return count


def device_count_for(options: Options, ipus_per_replica: int) -> int:
    """How many IPUs a model takes under these options."""
    offline = options.connection_type is ConnectionType.Never
    return device_count(
        ipus_per_replica,
        options.replication_factor,
        strict=options.is_strict,
        auto_round=options.auto_round_num_ipus,
        any_count=offline or options.uses_ipu_model,
    )


def check_inference_options(options: Options) -> None:
    """Refuse options that only make sense when there are gradients."""
    accumulation = options.Training.gradient_accumulation
    if accumulation == 1:
        return
    pipelined = options.execution_strategy.is_pipelined
    hint = (
        " To fill a pipeline in inference, use options.deviceIterations instead."
        if pipelined
        else ""
    )
    raise OptionError(
        f"options.Training.gradientAccumulation must be 1 for inference, not {accumulation}.{hint}",
        fix="clone the options and call Training.gradientAccumulation(1) on the clone",
    )
