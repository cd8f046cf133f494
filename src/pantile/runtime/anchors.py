"""Anchors: tensors from inside the step that the user wants to see (`Options.anchorTensor`).

    of the program    layer/0/Conv:0, Gradient___fc.weight, input, loss      each micro-batch
    of the update     UpdatedVar___fc.weight, Accl1___fc.weight,             each device iteration
                      learningRate___specific___fc.weight, finalLossScale

Each anchor has an output mode of its own; without one it has that of the model's outputs.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from pantile.enums import OutputMode
from pantile.errors import OptionError, StateError, combined
from pantile.logging import logger
from pantile.options import Options
from pantile.passes.expose_tensors import expose_tensors
from pantile.program.naming import TensorNames
from pantile.program.program import Program
from pantile.program.spec import OutputKind
from pantile.runtime.names import UPDATED, update_values
from pantile.runtime.optimizer import Update
from pantile.runtime.outputs import Batching, OutputCollector

_LOGGED = {OutputMode.Sum: "Sum"}
_OF_ALL_PARAMETERS = frozenset({"finalLossScale", "lossScaleUpdateFactor", "lossScaling_FLOAT"})


@dataclass(frozen=True)
class Anchor:
    """One tensor to keep."""

    short_name: str
    long_name: str
    mode: OutputMode
    period: int


class Anchors:
    """The anchors of one executor, and their latest values."""

    def __init__(self, anchors: Sequence[Anchor], batching: Batching) -> None:
        self.all = tuple(anchors)
        self._batching = batching
        self._of_update: dict[str, str] = {}
        """Short name -> the name under which an update tells the value."""
        self._collectors: dict[str, OutputCollector] = {}

    @staticmethod
    def of(options: Options, batching: Batching) -> Anchors:
        """As the options say; their output mode is resolved."""
        found = []
        for short, entry in options.anchored_tensors.items():
            mode, period = entry.output_mode, entry.output_return_period
            if mode is None:
                mode, period = OutputMode(options.output_mode), options.output_return_period
            found.append(Anchor(short, entry.long_name, OutputMode(mode), period))
        return Anchors(found, batching)

    # Compiling

    def expose(self, program: Program, *, loss: int | None) -> Program:
        """The program, returning what is anchored of it."""
        if not self.all:
            return program
        names = TensorNames(program).all
        if loss is not None:
            names.setdefault("loss", program.returned[loss])
        wanted: dict[str, fx.Node] = {}
        for anchor in self.all:
            mode = _LOGGED.get(anchor.mode, anchor.mode.name.upper())
            period = anchor.period if anchor.mode is OutputMode.EveryN else 1
            logger.debug("anchored tensor: %s %s/%d", anchor.long_name, mode, period)
            for name in (anchor.long_name, _without_prefix(anchor.long_name)):
                if name in names:
                    wanted[anchor.short_name] = names[name]
                    break
                if _is_of_update(name, program):
                    self._of_update[anchor.short_name] = name
                    break
            else:
                raise _unknown(anchor, list(names))
        return expose_tensors(program, wanted)

    # Running

    def begin(self) -> None:
        """A step begins."""
        self._collectors = {
            anchor.short_name: OutputCollector(
                anchor.mode, anchor.period, self._batching_of(anchor.short_name)
            )
            for anchor in self.all
        }

    def _batching_of(self, short_name: str) -> Batching:
        of_update = short_name in self._of_update
        return replace(self._batching, accumulation=1) if of_update else self._batching

    def micro_batch(
        self, iteration: int, step: int, replica: int, tensors: Sequence[torch.Tensor]
    ) -> None:
        """Keep what one micro-batch returned of the anchors of its program, in order."""
        short_names = (a.short_name for a in self.all if a.short_name not in self._of_update)
        for short_name, tensor in zip(short_names, tensors, strict=True):
            collector = self._collectors[short_name]
            if collector.wants(iteration, step):
                collector.add(replica, [tensor])

    def begin_update(self, iteration: int, update: Update) -> None:
        """Before an update: the loss scale that its gradients have."""
        self._keep(iteration, {"finalLossScale": torch.tensor(update.loss_scaling)})

    def end_update(
        self, iteration: int, update: Update, weights: Mapping[str, torch.Tensor]
    ) -> None:
        """After an update: what it left."""
        updated = {f"{UPDATED}{name}": tensor for name, tensor in weights.items()}
        self._keep(iteration, {**updated, **update_values(update)})

    def _keep(self, iteration: int, values: Mapping[str, object]) -> None:
        for anchor in self.all:
            value = values.get(self._of_update.get(anchor.short_name, ""))
            collector = self._collectors[anchor.short_name]
            if isinstance(value, torch.Tensor) and collector.wants(iteration, 0):
                for replica in range(self._batching.replicas):
                    collector.add(replica, [value.detach().clone()])

    # Reading

    def value(self, short_name: str) -> torch.Tensor:
        """What the latest step kept."""
        known = [anchor.short_name for anchor in self.all]
        if short_name not in known:
            raise combined(StateError, AssertionError)(
                f"No tensor with name {short_name} found among the anchors {known}",
                fix=f"call options.anchorTensor({short_name!r}, ...) before wrapping the model",
            )
        collector = self._collectors.get(short_name)
        found = [] if collector is None else collector.gathered()
        if not found:
            raise combined(StateError, AssertionError)(
                f"No tensor with name {short_name} found: the model has not run, or the mode of "
                "the anchor kept nothing of the latest step",
                fix="run the model first",
            )
        return found[0]


def anchored(program: Program) -> int:
    """How many values a run returns for anchors; they are the last ones."""
    return len(program.outputs_of(OutputKind.ANCHOR))


def _without_prefix(long_name: str) -> str:
    """Older releases put `model.` before the names of parameters; a model may have it too."""
    head, separator, name = long_name.rpartition("___")
    return f"{head}{separator}{name.removeprefix('model.')}" if separator else long_name


def _is_of_update(name: str, program: Program) -> bool:
    trained = {entry.name for entry in program.outputs_of(OutputKind.GRADIENT)}
    return bool(trained) and (name in _OF_ALL_PARAMETERS or name.rpartition("___")[2] in trained)


def _unknown(anchor: Anchor, names: Sequence[str]) -> OptionError:
    close = difflib.get_close_matches(anchor.long_name, names, n=3, cutoff=0.3)
    return OptionError(
        f"anchorTensor({anchor.short_name!r}, {anchor.long_name!r}): the model has no such tensor",
        fix=f"names like it are {close}; getTensorNames() of a compiled model lists all",
    )
