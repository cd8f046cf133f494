"""`pantile info`: the software IPUs of this machine, in the words of `gc-info`."""

from __future__ import annotations

import argparse
import json
import os
import platform
from typing import Any

import pantile
from pantile.errors import Error
from pantile.machine.targets import CHIPS, Chip, assumptions, chip_named, pod
from pantile.runtime.registry import running

DEVICES = 16


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `pantile info`."""
    parser = commands.add_parser("info", help="list the software IPUs, or tell about one")
    arguments(parser)
    parser.set_defaults(run=run)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options, also those of `gc-info`."""
    parser.add_argument("-l", "--list-devices", action="store_true", help="one line a device")
    parser.add_argument("-d", "--device-id", type=int, help="the device to tell about")
    parser.add_argument("-i", "--device-info", action="store_true", help="all attributes")
    parser.add_argument("--chip", default="Bow", help="the modelled chip: " + ", ".join(CHIPS))
    parser.add_argument("--constants", action="store_true", help="the model's constants")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(parsed: argparse.Namespace) -> int:
    """Print devices, attributes or constants."""
    chip = chip_named(parsed.chip)
    if parsed.constants:
        _print_constants(chip, as_json=parsed.json)
        return 0
    if parsed.device_id is None:
        devices = [attributes(index, chip) for index in range(DEVICES)]
        if parsed.json:
            print(json.dumps(devices, indent=2))
        else:
            for device in devices:
                print(
                    f"-+- Id: [{device['id']}], target: [{device['target']}], "
                    f"IPU#: [{device['board ipu index']}], type: [{device['board type']}]"
                )
        return 0
    if not 0 <= parsed.device_id < DEVICES:
        raise Error(
            f"there is no device {parsed.device_id}", fix=f"choose one from 0 to {DEVICES - 1}"
        )
    device = attributes(parsed.device_id, chip)
    if parsed.json:
        print(json.dumps(device, indent=2))
    else:
        for name, value in device.items():
            print(f"{name}: {value}")
    return 0


def attributes(index: int, chip: Chip) -> dict[str, Any]:
    """What is known of a device; what only hardware has is left out."""
    users = [r for r in running() if index < r.entry.ipus_per_replica * r.entry.replicas]
    found: dict[str, Any] = {
        "id": index,
        "target": "Fabric",
        "board ipu index": index % 4,
        "board type": "virtual",
        "board variant": f"{chip.name} (modelled)",
        "clock": f"{chip.clock_hz / 1e6:.0f}MHz",
        "driver version": pantile.__version__,
        "ipu architecture": chip.architecture,
        "ipu error state": "no errors",
        "number of tiles": chip.tiles,
        "memory per tile": chip.memory_bytes_per_tile,
        "remote buffers supported": 1,
        "host": platform.node(),
        "host processors": os.cpu_count(),
    }
    if users:
        entry = users[0].entry
        found["user process id"] = entry.pid
        found["user executable"] = entry.command
        found["user name"] = entry.user
    return found


def _print_constants(chip: Chip, *, as_json: bool) -> None:
    rows = [*assumptions(chip), *assumptions(pod(chip, DEVICES))]
    if as_json:
        plain = [
            {"name": n, "value": v, "source": f.source, "assumed": f.assumed} for n, v, f in rows
        ]
        print(json.dumps(plain, indent=2))
        return
    for name, value, fact in rows:
        mark = "assumed: " if fact.assumed else ""
        print(f"{name:30} {value:<14g} {mark}{fact.source}")
