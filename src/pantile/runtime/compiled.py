"""One compiled signature: the captured Program after the passes, lowered, ready to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from pantile.capture.signature import Signature
from pantile.lowering.executable import Executable
from pantile.program.program import Program
from pantile.program.spec import Input, InputKind, OutputKind, TensorSpec
from pantile.program.structure import unflatten
from pantile.runtime.weights import Weights

if TYPE_CHECKING:
    from pantile.capture.forward import Captured


@dataclass(frozen=True, eq=False)
class Compiled:
    """The entry point of one micro-batch for one signature of the arguments."""

    signature: Signature
    values: Mapping[str, Any]
    captured: Captured
    executable: Executable
    flags: tuple[bool, ...]

    @property
    def program(self) -> Program:
        """The program that runs."""
        return self.executable.program

    @property
    def gradients(self) -> dict[str, TensorSpec]:
        """What the program returns or accumulates as gradients, by parameter."""
        captured = self.captured.program.outputs_of(OutputKind.GRADIENT)
        return {out.name: out.spec for out in captured if isinstance(out.spec, TensorSpec)}

    @property
    def user_outputs(self) -> int:
        """How many tensors of a run are the user's."""
        return len(self.program.outputs_of(OutputKind.USER))

    def run(
        self,
        weights: Weights,
        arguments: Sequence[torch.Tensor],
        replica: int,
        extra: Mapping[tuple[InputKind, str], Any],
    ) -> tuple[Any, ...]:
        """Run one micro-batch of one replica."""
        given = iter(arguments)
        values = [self._value(entry, weights, given, replica, extra) for entry in self.program.inputs]
        return self.executable.run(values)

    def _value(
        self,
        entry: Input,
        weights: Weights,
        arguments: Any,
        replica: int,
        extra: Mapping[tuple[InputKind, str], Any],
    ) -> Any:
        if entry.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            return weights.value(entry.name, replica)
        if entry.kind is InputKind.ARGUMENT:
            return next(arguments)
        return extra[entry.kind, entry.name]

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What forward returned, with these tensors for the ones the graph computes."""
        leaves = [
            tensors[leaf] if isinstance(leaf, int) else leaf.clone()
            for leaf in self.captured.leaves
        ]
        return unflatten(self.captured.structure, leaves)


def own_copies(results: Sequence[Any], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of the results that share memory with nothing that lives on."""
    taken = {_memory(tensor) for tensor in inputs}
    copies = []
    for result in results:
        place = _memory(result)
        if place in taken or result.untyped_storage().nbytes() > 4 * max(_bytes(result), 64):
            result = result.clone()
            place = _memory(result)
        taken.add(place)
        copies.append(result)
    return copies


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
