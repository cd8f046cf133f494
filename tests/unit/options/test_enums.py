"""The values of the enums are part of the contract: clients store and compare them as numbers."""

from __future__ import annotations

from enum import IntEnum

import pytest

from pantile import enums

VALUES = {
    "MeanReductionStrategy": {"Running": 0, "Post": 1, "PostAndLoss": 2},
    "DataLoaderMode": {"Sync": 0, "Async": 1, "AsyncRebatched": 2},
    "SharingStrategy": {"SharedMemory": 0, "FileSystem": 1, "Fork": 2, "ForkServer": 3},
    "OutputMode": {"Final": 0, "EveryN": 1, "All": 2, "Sum": 3, "Default": 4},
    "ConnectionType": {"Always": 0, "OnDemand": 1, "Never": 2},
    "HalfFloatCastingBehavior": {"FloatDowncastToHalf": 0, "HalfUpcastToFloat": 1, "Default": 2},
    "ReductionType": {"Sum": 0, "Mean": 1, "NoReduction": 2},
    "SyncPattern": {"Full": 0, "SinglePipeline": 1, "ReplicaAndLadder": 2},
    "MatMulSerializationMode": {
        "InputChannels": "input_channels",
        "ReducingDim": "reducing_dim",
        "OutputChannels": "output_channels",
        "Disabled": "none",
    },
    "Liveness": {
        "AlwaysLive": 0,
        "OffChipAfterFwd": 1,
        "OffChipAfterFwdNoOverlap": 2,
        "OffChipAfterEachPhase": 3,
    },
    "OverlapMode": {
        "NoOverlap": "no_overlap",
        "OverlapAccumulationLoop": "overlap_accumulation_loop",
        "OverlapDeviceIterationLoop": "overlap_device_iteration_loop",
    },
    "AutoStage": {"SameAsIpu": 0, "AutoIncrement": 1},
    "MultiConvPlanType": {"Parallel": 0, "Serial": 1},
    "CommGroupType": {"All": 0, "Consecutive": 1, "Orthogonal": 2, "NoGrouping": 3},
    "VariableRetrievalMode": {"OnePerGroup": 0, "AllReplicas": 2},
    "Compiler": {"PopART": 0, "MLIR": 1},
}


@pytest.mark.parametrize("name", VALUES)
def test_an_enum_has_exactly_the_specified_members(name: str) -> None:
    enum = getattr(enums, name)

    assert {member.name: member.value for member in enum} == VALUES[name]


@pytest.mark.parametrize("name", sorted(VALUES.keys() - {"MatMulSerializationMode", "OverlapMode"}))
def test_an_enum_of_numbers_compares_with_ints(name: str) -> None:
    assert issubclass(getattr(enums, name), IntEnum)


def test_all_enums_are_exported() -> None:
    assert sorted(enums.__all__) == sorted(VALUES)
