"""Time on wires: between IPUs of a pipeline, between replicas, to the host, to DRAM; in seconds."""

from __future__ import annotations

from math import ceil, log2

from pantile.machine.targets import System


def pipeline_copy_seconds(system: System, nbytes: float) -> float:
    """Handing activations to the next IPU."""
    return nbytes / (system.link_bytes_per_second * system.link_efficiency)


def ring_rate(system: System, replicas: int, ipus_per_replica: int) -> float:
    """Bytes a second of a ring of replicas: few links lead out of a machine."""
    inside = replicas * ipus_per_replica <= system.ipus_per_machine
    wire = system.link_bytes_per_second if inside else system.ring_bytes_per_second
    return wire * system.link_efficiency


def all_reduce_seconds(
    system: System, nbytes: float, replicas: int, ipus_per_replica: int = 1, messages: int = 1
) -> float:
    """Summing `nbytes` of gradients over replicas: a ring on links, then one on gateways.

    Each of the `messages` waits for its own latency; a buffer that merges tensors makes them fewer.
    """
    if replicas <= 1:
        return 0.0
    inside = max(1, min(replicas, system.ipus_per_link_domain // ipus_per_replica))
    domains = ceil(replicas / inside)
    links = ring_rate(system, replicas, ipus_per_replica)
    seconds = 2 * (inside - 1) / inside * nbytes / links
    if system.collective_buffer_bytes:
        messages = min(messages, ceil(nbytes / system.collective_buffer_bytes))
    seconds += messages * log2(max(2, replicas)) * system.collective_latency_seconds
    if domains > 1:
        # The sum of a whole domain passes the gateways of the machine where the ring leaves it.
        wire = system.gateway_bytes_per_second * system.gateway_efficiency
        seconds += 2 * (domains - 1) / domains * nbytes / wire
    return seconds


def gather_seconds(
    system: System, nbytes: float, replicas: int, ipus_per_replica: int = 1
) -> float:
    """Collecting shards of `nbytes` in all on every replica."""
    links = ring_rate(system, replicas, ipus_per_replica)
    return (replicas - 1) / replicas * nbytes / links if replicas > 1 else 0.0


def host_seconds(system: System, nbytes: float, streams_per_machine: int = 1) -> float:
    """Reading inputs from the host, with so many IPUs of a machine reading at once."""
    share = system.host_bytes_per_second_per_machine / max(1, streams_per_machine)
    return nbytes / min(system.host_bytes_per_second_per_ipu, share)


def streaming_seconds(system: System, nbytes: float) -> float:
    """Reading from or writing to streaming memory."""
    return nbytes / system.streaming_bytes_per_second
