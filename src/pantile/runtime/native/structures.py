"""The plan of a device loop as C++ reads it: the structures of plan.h, field by field."""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_char, c_double, c_int32, c_int64, c_void_p
from enum import IntEnum

import torch


class InputCode(IntEnum):
    """What an input of a program is."""

    STATE = 0
    ARGUMENT = 1
    ACCUMULATOR = 2
    SEEDS = 3
    OLD_WEIGHT = 4
    NEW_WEIGHT = 5


#: How elements are added, and how many of these one element of the tensor has.
SUM_CODES = {
    torch.float32: (0, 1),
    torch.complex64: (0, 2),
    torch.float64: (1, 1),
    torch.complex128: (1, 2),
    torch.bfloat16: (2, 1),
    torch.float16: (3, 1),
}


class ProgramEntry(Structure):
    """The functions of a compiled program."""

    _fields_ = [
        (name, c_void_p) for name in ("create", "destroy", "run", "error", "keep", "setups")
    ]


class InputPlan(Structure):
    """One input of one replica."""

    _fields_ = [
        ("kind", c_int32),
        ("argument", c_int32),
        ("handle", c_void_p),
        ("data", c_void_p),
        ("bytes", c_int64),
    ]


class ViewPlan(Structure):
    """A part of an argument, or a result of one micro-batch."""

    _fields_ = [
        ("dims", c_int64),
        ("sizes", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("bytes", c_int64),
        ("dtype", c_int32),
        ("by_torch", c_int32),
    ]


class SumPlan(Structure):
    """A sum of accumulators over replicas."""

    _fields_ = [
        ("elements", c_int64),
        ("target", c_void_p),
        ("sources", ctypes.POINTER(c_void_p)),
        ("count", c_int64),
        ("kind", c_int32),
    ]


class LoopPlan(Structure):
    """All of it."""

    _fields_ = [
        ("body", ProgramEntry),
        ("update", ProgramEntry),
        *(
            (name, c_int64)
            for name in (
                "accumulation",
                "replicas",
                "first_replica",
                "micro_batches",
                "workers",
                "threads",
                "update_threads",
                "inputs",
                "arguments",
                "outputs",
                "results",
                "update_inputs",
                "update_outputs",
                "sums",
            )
        ),
        ("input", ctypes.POINTER(InputPlan)),
        ("argument", ctypes.POINTER(ViewPlan)),
        ("result", ctypes.POINTER(ViewPlan)),
        ("update_input", ctypes.POINTER(c_void_p)),
        ("sum", ctypes.POINTER(SumPlan)),
        ("parts", c_void_p),
        ("slots", c_void_p),
        ("wanted", c_void_p),
        ("deadline", c_double),
        ("writes", c_int64),
        ("argument_data", ctypes.POINTER(c_void_p)),
        ("result_data", ctypes.POINTER(c_void_p)),
        ("times", c_void_p),
        ("counters", c_void_p),
        ("seed", c_void_p),
        ("constants", c_void_p),
    ]


class Failure(Structure):
    """Where and why a run stopped. Step -1 is the update, replica -1 none of them."""

    _fields_ = [
        ("iteration", c_int64),
        ("step", c_int64),
        ("replica", c_int64),
        ("message", c_char * 4000),
    ]


def int64_array(values: tuple[int, ...]) -> ctypes.Array[c_int64]:
    """The numbers for C++."""
    return (c_int64 * len(values))(*values)
