"""Published results as runs of the machine model: stages of units, and a configuration.

The points are in `published.json`, each with its source and configuration. Where a publication
gives the global batch only, the nearest published configuration stands in (`config_confidence`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.machine.pieces import Piece, unit_of
from pantile.machine.calibration import Calibration
from pantile.machine.cost import CostSettings
from pantile.machine.optimizers import OptimizerModel
from pantile.machine.targets import adjusted, chip_named, pod
from pantile.machine.timing import Configuration, Timing, time_of
from pantile.machine.units import Unit

FILE = Path(__file__).with_name("published.json")
MORE = Path(__file__).with_name("published_later.json")
LAST = Path(__file__).with_name("published_last.json")


@dataclass(frozen=True)
class Shape:
    """A transformer: layers, width, heads, and the words it knows."""

    layers: int
    width: int
    heads: int
    words: int = 30522


BERT = {"BERT-base": Shape(12, 768, 12), "BERT-large": Shape(24, 1024, 16)}
GPT2 = {
    "GPT2-small": Shape(12, 768, 12, 50257),
    "GPT2-medium": Shape(24, 1024, 16, 50257),
    "GPT2-large": Shape(36, 1280, 20, 50257),
}
VIT = {"ViT-B/16": Shape(12, 768, 12)}
SWIN = {
    "Swin-Tiny 224": ((2, 2, 6, 2), 96, 3),
    "Swin-Base 224": ((2, 2, 18, 2), 128, 4),
    "Swin-Large 224": ((2, 2, 18, 2), 192, 6),
}
_HIDDEN_WORDS = {128: 20, 384: 56, 512: 76}
TRANSFORMERS = (*BERT, *GPT2, *VIT, *SWIN)


@dataclass(frozen=True)
class Run:
    """A point, ready to be timed: pieces for each IPU with the memory proportion of each."""

    stages: tuple[tuple[tuple[Piece, float], ...], ...]
    settings: CostSettings
    configuration: Configuration
    parts: bool = False
    samples_per_item: float = 1.0

    def units(self) -> list[list[Unit]]:
        """The units of each IPU."""
        found: list[list[Unit]] = []
        for index, stage in enumerate(self.stages):
            own = replace(self.settings, proportions=(self.settings.proportion(index),))
            units: list[Unit] = []
            for piece, count in stage:
                priced = unit_of(piece, own, parts=self.parts)
                units += [
                    unit.named(f"stage{index}-{len(units) + n}") if count > 1 else unit
                    for n in range(int(count))
                    for unit in priced
                ]
                if count % 1:  # attention on this IPU, feed-forward on another
                    units += [_part(unit, count % 1) for unit in priced]
            found.append(units)
        return found

    def time(self) -> Timing:
        """How long an update takes."""
        return time_of(self.units(), self.configuration)

    def throughput(self) -> float:
        """Items of the publication's unit each second."""
        return self.time().samples_per_second * self.samples_per_item


def _part(unit: Unit, part: float) -> Unit:
    return replace(
        unit,
        forward=part * unit.forward,
        backward=part * unit.backward,
        accumulate=part * unit.accumulate,
        parameters=unit.parameters[: round(part * len(unit.parameters))],
        saved_bytes=int(part * unit.saved_bytes),
    )


def load(path: Path = FILE) -> dict[str, Any]:
    """The file of published points."""
    return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def run_of(point: dict[str, Any], calibration: Calibration) -> Run:
    """The run of a published end-to-end point."""
    known = {key: value for key, value in point.items() if value is not None}
    if isinstance(known.get("layers_per_ipu"), str):
        del known["layers_per_ipu"]
    filled = {"micro_batch": 1, **_STAND_INS.get(point["id"], {}), **known}
    build = next(make for names, make in _MAKERS if point["model"] in names)
    return build(filled, calibration)


# What stands in where a publication gives no configuration of its own.
_PRETRAIN = {"recompute": "per layer", "ipus_per_replica": 4}
_STAND_INS: dict[str, dict[str, Any]] = {
    "bert-b-ph1-popart-pod16": _PRETRAIN
    | {
        "micro_batch": 32,
        "grad_accumulation": 512,
        "replicas": 4,
        "layers_per_ipu": [0, 4, 4, 4],
        "available_memory_proportion": 0.25,
    },
    "bert-l-ph1-popart-pod16-pre25": _PRETRAIN
    | {
        "micro_batch": 8,
        "grad_accumulation": 2048,
        "replicas": 4,
        "layers_per_ipu": [3, 7, 7, 7],
        "available_memory_proportion": [0.15, 0.25, 0.25, 0.25],
    },
    "mlperf20-bert-l-pod16": _PRETRAIN
    | {
        "micro_batch": 2,
        "grad_accumulation": 192,
        "replicas": 4,
        "layers_per_ipu": [4.5, 6.5, 6.5, 6.5],
        "available_memory_proportion": 0.23,
    },
    "mlperf11-bert-l-pod16": {"layers_per_ipu": [4.5, 6.5, 6.5, 6.5]},
    "rn50-tf1-pod16": {  # resnet50_mlperf_pod16_lars: 22 * 10 * 16 = 3520
        "micro_batch": 22,
        "grad_accumulation": 10,
        "replicas": 16,
        "recompute": "yes",
        "available_memory_proportion": 0.15,
        "collective_buffer_bytes": 52428800,
    },
    "resnext101-tf1-pod16": {"available_memory_proportion": 0.2},
    "swin-t-pt-pod16": {"recompute": "stage", "available_memory_proportion": 0.6},
    "conformer-gc200-4": {"recompute": "stage", "available_memory_proportion": 0.3},
    "conformer-bow-4": {"recompute": "stage", "available_memory_proportion": 0.3},
    "byte-rn50-inf-c600": {"micro_batch": 16},
}


def _configuration(point: dict[str, Any]) -> Configuration:
    kind = str(point.get("recompute") or "none")
    words = {"none": "none", "stage": "stage", "manual checkpoints": "layer"}
    if point["framework"] == "TensorFlow1" and point["model"] not in TRANSFORMERS:
        words["yes"] = "stage"  # between the stages of the pipeline, and there only
    system = pod(chip_named(point["ipu_kind"]), point["num_ipus"])
    if point["framework"] != "PyTorch":  # others lost nothing between hosts
        system = adjusted(system, {"several_hosts_factor": 1.0})
    buffer = float(point.get("collective_buffer_bytes") or 0)
    system = adjusted(system, {"collective_buffer_bytes": buffer})
    return Configuration(
        system,
        point["micro_batch"],
        point.get("grad_accumulation") or 1,
        point.get("replicas") or 1,
        training="inference" not in point["task"],
        recompute=words.get(kind, "layer"),  # type: ignore[arg-type]
        optimizer=_optimizer(point),
        sharded_state=point["model"] in TRANSFORMERS,
        state_off_chip=point["model"] in TRANSFORMERS and not _on_chip(point),
    )


def _on_chip(point: dict[str, Any]) -> bool:
    """Fine-tuning of BERT and all of ViT and Swin keep their state on the chip, sharded."""
    return "SQuAD" in point["task"] or point["model"] not in BERT


def _optimizer(point: dict[str, Any]) -> OptimizerModel:
    if "SQuAD" in point["task"]:
        return OptimizerModel("adam", (2, 2) if point["framework"] == "PopART" else (2, 4))
    if point["model"] in TRANSFORMERS:
        return OptimizerModel("lamb", (2, 4))
    # Combined: the momentum is the tensor gradients are accumulated in.
    return OptimizerModel("momentum", (0,))


def _settings(point: dict[str, Any], calibration: Calibration) -> CostSettings:
    amps = point.get("available_memory_proportion") or 0.6
    partials = "float32" if point["precision"] in ("16.32", "32.32") else "float16"
    return CostSettings(
        chip_named(point["ipu_kind"]),
        tuple(amps) if isinstance(amps, list) else (float(amps),),
        partials,
        calibration,
    )


def _dtype(point: dict[str, Any]) -> str:
    return "float32" if point["precision"] == "32.32" else "float16"


def _run(
    point: dict[str, Any], calibration: Calibration, stages: Sequence[Sequence[tuple[Piece, float]]]
) -> Run:
    return Run(
        tuple(tuple(stage) for stage in stages),
        _settings(point, calibration),
        _configuration(point),
        samples_per_item=float(point.get("sequences_per_pack") or _packing(point["task"])),
    )


def _packing(task: str) -> float:
    """Sequences in one packed sample, where the task says so."""
    if "packed" not in task:
        return 1.0
    return 2.0 if "512" in task or "phase 2" in task else 1.17


def _bert(point: dict[str, Any], calibration: Calibration) -> Run:
    shape, batch, length = BERT[point["model"]], point["micro_batch"], point["seq_len"]
    dtype = _dtype(point)
    layer = Piece("bert layer", (length, shape.width, shape.heads), batch, dtype)
    embedding = Piece("embedding", (length, shape.width, shape.words, 1), batch, dtype)
    if "SQuAD" in point["task"] or "fine" in point["task"].lower():
        head = Piece("span", (length, shape.width), batch, dtype)
    else:
        hidden = _HIDDEN_WORDS[length]
        head = Piece("masked words", (length, shape.width, shape.words, hidden), batch, dtype)
    counts = [c for c in point["layers_per_ipu"] if isinstance(c, int | float)]
    if "emb" in point["layers_per_ipu"]:
        counts = [0, *counts]
    stages = [[(layer, c)] if c else [] for c in counts]
    stages[0] = [(embedding, 1), *stages[0], (head, 1)]
    return _run(point, calibration, stages)


def _gpt(point: dict[str, Any], calibration: Calibration) -> Run:
    shape, batch, length = GPT2[point["model"]], point["micro_batch"], point["seq_len"]
    layer = Piece("gpt layer", (length, shape.width, shape.heads), batch)
    embedding = Piece("embedding", (length, shape.width, shape.words, 0), batch)
    head = Piece("next word", (length, shape.width, shape.words), batch)
    stages = [[(layer, c)] if c else [] for c in point["layers_per_ipu"]]
    stages[0] = [(embedding, 1), *stages[0], (head, 1)]
    return _run(point, calibration, stages)


def _vit(point: dict[str, Any], calibration: Calibration) -> Run:
    shape, batch = VIT[point["model"]], point["micro_batch"]
    layer = Piece("vit layer", (197, shape.width, shape.heads), batch)
    stages = [[(layer, count)] for count in point["layers_per_ipu"]]
    stages[0] = [(Piece("patches", (shape.width, 16, 1), batch), 1), *stages[0]]
    stages[-1] = [*stages[-1], (Piece("classes", (197, shape.width), batch), 1)]
    return _run(point, calibration, stages)


def _swin(point: dict[str, Any], calibration: Calibration) -> Run:
    depths, width, heads = SWIN[point["model"]]
    batch, dtype = point["micro_batch"], _dtype(point)
    side = 56
    layers: list[list[Piece]] = []
    for stage, depth in enumerate(depths):
        for index in range(depth):
            piece = Piece("swin layer", (side, width, heads, index % 2), batch, dtype)
            layers.append([piece])
        if stage < len(depths) - 1:
            layers[-1].append(Piece("swin merge", (side, width), batch, dtype))
            side, width, heads = side // 2, 2 * width, 2 * heads
    first = SWIN[point["model"]][1]
    stages: list[list[tuple[Piece, float]]] = []
    for count in point["layers_per_ipu"]:
        stages.append([(piece, 1) for pieces in layers[:count] for piece in pieces])
        layers = layers[count:]
    stages[0].insert(0, (Piece("patches", (first, 4, 0), batch, dtype), 1))
    stages[-1].append((Piece("classes of mean", (side * side, width), batch, dtype), 1))
    return _run(point, calibration, stages)


def _conformer(point: dict[str, Any], calibration: Calibration) -> Run:
    batch, length = point["micro_batch"], 304
    layer = Piece("conformer layer", (length, 256, 4, 2048, 15), batch)
    decoder = Piece("speech decoder", (length, 256, 4, 4233, 6, 2048, 48), batch)
    first = Piece("subsampling", (point["seq_len"], 256, 80), batch)
    counts = (2, 4, 5, 1)
    stages: list[list[tuple[Piece, float]]] = [[(layer, count)] for count in counts]
    stages[0].insert(0, (first, 1))
    stages[-1].append((decoder, 1))
    return _run(point, calibration, stages)


def _residual(point: dict[str, Any], calibration: Calibration) -> Run:
    deep, groups = (101, 32) if "101" in point["model"] else (50, 1)
    training = "inference" not in point["task"]
    piece = Piece("residual", (deep, groups), point["micro_batch"], _dtype(point), training)
    run = _whole(point, calibration, piece)
    if point["framework"] != "TensorFlow1" or deep != 50:
        return run
    # A pipeline of seven stages on one IPU: the last, from stage3/unit5 on, is not recomputed.
    chosen = replace(run.configuration, recompute="layer")
    return replace(run, configuration=chosen, kept="blocks.11")  # type: ignore[call-arg]


def _efficient(point: dict[str, Any], calibration: Calibration) -> Run:
    return _whole(point, calibration, Piece("efficient", (4, 16, 4), point["micro_batch"]))


def _whole(point: dict[str, Any], calibration: Calibration, piece: Piece) -> Run:
    """A network captured as one piece, cut as published, or where its stages take equal time."""
    run = replace(_run(point, calibration, [[(piece, 1)]]), parts=True)
    first = tuple(point.get("first_of_stages", ()))
    return _Cut(**vars(run), count=point.get("ipus_per_replica") or 1, first=first)


def _cut_before(units: Sequence[Unit], first: Sequence[str]) -> list[list[Unit]]:
    stages: list[list[Unit]] = [[]]
    for unit in units:
        if len(stages) <= len(first) and unit.name.endswith(first[len(stages) - 1]):
            stages.append([])
        stages[-1].append(unit)
    return stages


@dataclass(frozen=True)
class _Cut(Run):
    """A run whose one piece is cut into `count` stages at the borders of its blocks."""

    count: int = 1
    #: The units that begin the second stage and those after it, by the end of their names.
    first: tuple[str, ...] = ()
    #: On one IPU, the unit from which on nothing is recomputed.
    kept: str = ""

    def time(self) -> Timing:
        timing = super().time()
        names = [unit.name for stage in self.units() for unit in stage]
        if not self.kept:
            return timing
        start = next(i for i, name in enumerate(names) if name.endswith(self.kept))
        behind = sum(unit.forward for stage in self.units() for unit in stage[start:])
        spared = timing.cycles * behind / self.settings.chip.clock_hz
        return replace(timing, seconds=timing.seconds - spared)

    def units(self) -> list[list[Unit]]:
        units = unit_of(self.stages[0][0][0], self.settings, parts=True)
        if self.first:
            return _cut_before(units, self.first)
        share = sum(unit.forward + unit.backward for unit in units) / self.count
        stages: list[list[Unit]] = [[]]
        spent = 0.0
        for unit in units:
            if spent >= share * len(stages) and len(stages) < self.count:
                stages.append([])
            stages[-1].append(unit)
            spent += unit.forward + unit.backward
        return stages


_MAKERS: list[tuple[tuple[str, ...], Callable[[dict[str, Any], Calibration], Run]]] = [
    (tuple(BERT), _bert),
    (tuple(GPT2), _gpt),
    (tuple(VIT), _vit),
    (tuple(SWIN), _swin),
    (("Conformer (12 enc/6 dec, d=256)",), _conformer),
    (("ResNet-50 v1.5", "ResNet-50", "ResNeXt-101"), _residual),
    (("EfficientNet-B4 (groups of 16)",), _efficient),
]
