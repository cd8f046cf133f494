"""The machines that are modelled, as data.

    Chip     one IPU: tiles, clock, memory, exchange, what its matrix unit does in a cycle
    System   chips joined to a pod: links, gateways, host, streaming memory

Every number has a source in `SOURCES`; what nobody published is marked as assumed. Change one
with `dataclasses.replace(BOW, sync_cycles=300)` or with `adjusted(BOW, {"sync_cycles": 300})`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from pantile.errors import Error

KIB = 1024
MK2_TILE_BYTES = 624 * KIB


@dataclass(frozen=True)
class Fact:
    """Where a number comes from, and whether it had to be assumed."""

    source: str
    assumed: bool = False


@dataclass(frozen=True)
class Chip:
    """One IPU."""

    name: str
    architecture: str
    tiles: int
    clock_hz: float
    memory_bytes_per_tile: int = MK2_TILE_BYTES
    worker_contexts: int = 6
    exchange_bytes_per_cycle: float = 4.0
    memcpy_bytes_per_cycle: float = 8.0
    vector_bytes: int = 8
    units_half: int = 16
    units_single: int = 8
    units_float: int = 16
    has_fp8: bool = False
    sync_cycles: float = 450.0
    exchange_latency_cycles: float = 150.0
    launch_cycles: float = 11.0
    global_sync_cycles: float = 600.0
    code_bytes_per_tile: int = 37 * KIB
    exchange_code_bytes_per_tile: int = 16 * KIB
    vertex_state_bytes_per_tile: int = 7 * KIB
    tile_imbalance: float = 1.08

    @property
    def memory_bytes(self) -> int:
        """On-chip memory of the whole IPU."""
        return self.tiles * self.memory_bytes_per_tile

    @property
    def step_cycles(self) -> float:
        """What each compute-sync-exchange step costs before any work is done."""
        return self.sync_cycles + self.exchange_latency_cycles + self.launch_cycles

    def peak_flops(self, dtype: str = "float16") -> float:
        """Multiply and add counted, with partial sums of the same type."""
        per_cycle = {"float16": 4 * self.units_half, "float32": self.units_float}
        return 2 * self.tiles * self.clock_hz * per_cycle[dtype]


@dataclass(frozen=True)
class System:
    """IPUs joined to a machine: how they talk to each other, to the host and to DRAM."""

    name: str
    chip: Chip
    ipus: int
    ipus_per_machine: int = 4
    ipus_per_link_domain: int = 64
    link_bytes_per_second: float = 64e9
    ring_bytes_per_second: float = 32e9
    gateway_bytes_per_second: float = 25e9
    link_efficiency: float = 0.85
    gateway_efficiency: float = 0.85
    collective_latency_seconds: float = 5e-6
    collective_buffer_bytes: float = 0.0
    host_bytes_per_second_per_ipu: float = 5e9
    host_bytes_per_second_per_machine: float = 10e9
    streaming_bytes_per_second: float = 12e9
    streaming_bytes_per_ipu: int = 32 * 10**9
    ipus_per_host: int = 16
    several_hosts_factor: float = 1.128


GC2 = Chip(
    "GC2",
    "ipu1",
    tiles=1216,
    clock_hz=1.6e9,
    memory_bytes_per_tile=256 * KIB,
    units_half=8,
    units_single=8,
    units_float=8,
)
GC200 = Chip("GC200", "ipu2", tiles=1472, clock_hz=1.325e9)
BOW = Chip("Bow", "ipu2", tiles=1472, clock_hz=1.85e9)
C600 = Chip("C600", "ipu21", tiles=1472, clock_hz=1.5e9, has_fp8=True)
CHIPS = {chip.name.lower(): chip for chip in (GC2, GC200, BOW, C600)}

_POPLIBS = "graphcore/poplibs (MIT): its performance estimators"
_STACK = "osmarks/ipu-stack: costs measured on a C600"
_DOCS = "docs.graphcore.ai"
SOURCES: dict[str, Fact] = {
    "tiles": Fact("Jia et al. 2019 (GC2); ByteMLPerf IPU README (Mk2)"),
    "clock_hz": Fact("peak of the pod datasheets divided by tiles and units; MLPerf system files"),
    "memory_bytes_per_tile": Fact("graphcore/popliner default of 638 976 bytes; Jia et al. (GC2)"),
    "worker_contexts": Fact(f"{_DOCS}: assembly programming"),
    "exchange_bytes_per_cycle": Fact(f"8 TB/s over tiles and clock; {_STACK}"),
    "memcpy_bytes_per_cycle": Fact(_STACK),
    "vector_bytes": Fact(_POPLIBS),
    "units_half": Fact(_POPLIBS),
    "units_single": Fact(_POPLIBS),
    "units_float": Fact("FP32 peak of the datasheets divided by tiles and clock"),
    "sync_cycles": Fact(f"600 cycles for each exchange phase, less the latency; {_STACK}"),
    "exchange_latency_cycles": Fact("ipu-stack: 52 + 2 per row, and the way back", assumed=True),
    "launch_cycles": Fact(_STACK),
    "global_sync_cycles": Fact(_STACK),
    "code_bytes_per_tile": Fact("20 to 40 KB seen in profiles", assumed=True),
    "exchange_code_bytes_per_tile": Fact(f"15.6 KB on average for a 27-layer ViT; {_STACK}"),
    "vertex_state_bytes_per_tile": Fact("5 to 10 KB with stack and constants", assumed=True),
    "tile_imbalance": Fact(f"596 494 of the fullest against 550 544 bytes on average; {_STACK}"),
    "ipus_per_machine": Fact(f"{_DOCS}: bow-2000 datasheet"),
    "ipus_per_link_domain": Fact(f"{_DOCS}: pod datasheets (64 IPUs share IPU-Links)"),
    "link_bytes_per_second": Fact(f"{_DOCS}: 4 links of 16 GB/s to each neighbour"),
    "ring_bytes_per_second": Fact("two links of 16 GB/s leave a machine from each of its IPUs"),
    "gateway_bytes_per_second": Fact(f"{_DOCS}: two links of 100 Gb/s for each machine"),
    "link_efficiency": Fact(_POPLIBS),
    "gateway_efficiency": Fact("as for the links", assumed=True),
    "collective_latency_seconds": Fact("a few global syncs for each message", assumed=True),
    "collective_buffer_bytes": Fact(
        "0: gradients are summed tensor by tensor, as PopART does unless told to merge"
    ),
    "host_bytes_per_second_per_ipu": Fact("3 to 5.5 GB/s quoted in graphcore/examples"),
    "host_bytes_per_second_per_machine": Fact("100 GbE at 80 %", assumed=True),
    "streaming_bytes_per_second": Fact("10 to 15 GB/s; PCIe Gen4 x8 is the ceiling", assumed=True),
    "streaming_bytes_per_ipu": Fact("MLPerf v2.0 system files"),
    "ipus_per_host": Fact("reference pods: one server for sixteen IPUs", assumed=True),
    "several_hosts_factor": Fact(
        "PyTorch, 16 to 64 IPUs: fitted to how BERT-large, phase 2, and ViT scale", assumed=True
    ),
}

Machine = TypeVar("Machine", Chip, System)


def pod(chip: Chip, ipus: int) -> System:
    """A pod of `ipus` IPUs; a C600 is a card with slower links to few others."""
    if ipus < 1 or ipus & (ipus - 1):
        raise Error(
            f"a pod of {ipus} IPUs does not exist: partitions have a power of two",
            fix=f"ask for {1 << max(0, ipus - 1).bit_length()}",
        )
    if chip.architecture == "ipu1":
        return System(f"{chip.name} x{ipus}", chip, ipus, 2, 16, link_bytes_per_second=32e9)
    return System(f"{chip.name}-Pod{ipus}", chip, ipus)


def chip_named(name: str) -> Chip:
    """The chip of that name, however it is written."""
    key = name.lower().replace("ipu21-", "").replace("mk2", "gc200").replace("mk1", "gc2")
    if key not in CHIPS:
        raise Error(
            f"there is no chip {name!r}", fix=f"choose from {', '.join(c.name for c in _all())}"
        )
    return CHIPS[key]


def _all() -> tuple[Chip, ...]:
    return tuple(CHIPS.values())


def adjusted(machine: Machine, changes: Mapping[str, float]) -> Machine:
    """The machine with other constants; an unknown name is an error."""
    known = {field.name: field.type for field in fields(machine)}
    unknown = [name for name in changes if name not in known or name not in SOURCES]
    if unknown:
        raise Error(
            f"{machine.name} has no constant {unknown[0]!r}",
            fix=f"choose from {', '.join(name for name in known if name in SOURCES)}",
        )
    whole = {name: int(value) if known[name] == "int" else value for name, value in changes.items()}
    return replace(machine, **whole)  # type: ignore[arg-type]


def with_constants(system: System, changes: Mapping[str, float]) -> System:
    """The pod with other constants, its own or those of its chip."""
    own = {field.name for field in fields(system)}
    chip = {name: value for name, value in changes.items() if name not in own}
    if chip:
        system = replace(system, chip=adjusted(system.chip, chip))
    return adjusted(system, {name: value for name, value in changes.items() if name in own})


def constants_from(text: str) -> dict[str, float]:
    """`name=value,name=value` as a mapping."""
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise Error(
                f"{part!r} is no constant with its value", fix="write sync_cycles=300"
            ) from None
    return found


def assumptions(machine: Chip | System) -> list[tuple[str, float, Fact]]:
    """Every constant with its source, the assumed ones first."""
    rows = [
        (field.name, float(getattr(machine, field.name)), SOURCES[field.name])
        for field in fields(machine)
        if field.name in SOURCES
    ]
    return sorted(rows, key=lambda row: not row[2].assumed)
