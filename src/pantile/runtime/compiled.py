"""One compiled signature: the captured Program after the passes, lowered, ready to run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from pantile.capture.signature import Bound, Signature
from pantile.lowering.executable import Executable
from pantile.program.effects import is_random
from pantile.program.program import Program
from pantile.program.spec import InputKind, OutputKind, TensorSpec
from pantile.program.structure import unflatten
from pantile.runtime.loss_scale import half_gradients
from pantile.runtime.placement import Placement
from pantile.runtime.weights import Weights, memory_of

if TYPE_CHECKING:
    from pantile.capture.forward import Captured
    from pantile.runtime.pipeline.plan import Plan

# A result that fills less than this part of its memory is copied, so that the rest can be freed.
_SMALL_PART = 4
_SMALL_BYTES = 256


@dataclass(frozen=True)
class Variant:
    """What else than its arguments a program depends on.

    The train/eval flags, whether the loss is scaled, the dtype of an autocast scope round the
    call, and whether the scale of the loss adapts.
    """

    flags: tuple[bool, ...]
    scaled: bool = False
    autocast: torch.dtype | None = None
    adapts_scale: bool = False


@dataclass(frozen=True, eq=False)
class Compiled:
    """The entry point of one micro-batch for one signature of the arguments."""

    signature: Signature
    call: Bound
    captured: Captured
    executable: Executable
    variant: Variant
    placement: Placement
    pipeline: Plan | None = None

    @property
    def program(self) -> Program:
        """The program that runs."""
        return self.executable.program

    @property
    def micro_batch(self) -> int:
        """Samples of one micro-batch: the first size of the first argument that has one."""
        for entry in self.program.inputs_of(InputKind.ARGUMENT):
            if isinstance(entry.spec, TensorSpec) and entry.spec.shape:
                return max(1, entry.spec.shape[0])
        return 1

    @cached_property
    def gradients(self) -> dict[str, TensorSpec]:
        """What the program returns or accumulates as gradients, by parameter."""
        captured = self.captured.program.outputs_of(OutputKind.GRADIENT)
        return {out.name: out.spec for out in captured if isinstance(out.spec, TensorSpec)}

    @cached_property
    def watched_gradients(self) -> tuple[str, ...]:
        """The gradients that decide about the scale of the loss, if it adapts."""
        return half_gradients(self.program) if self.variant.adapts_scale else ()

    @cached_property
    def user_outputs(self) -> int:
        """How many tensors of a run are the user's."""
        return len(self.program.outputs_of(OutputKind.USER))

    @cached_property
    def draws_random_numbers(self) -> bool:
        """Whether a run takes numbers from a generator."""
        program = self.program
        return any(is_random(node, program.subgraphs) for node in program.graph.nodes)

    @cached_property
    def written_arguments(self) -> tuple[int, ...]:
        """The tensors of a call that the program writes to."""
        written = {e.name for e, _ in self.program.writes if e.kind is InputKind.ARGUMENT}
        return tuple(i for i, name in enumerate(self.call.names) if name in written)

    @cached_property
    def _constants(self) -> frozenset[int]:
        return frozenset(memory_of(tensor) for tensor in self.program.constants.values())

    @cached_property
    def _order(self) -> tuple[int, ...] | None:
        """For each input of the program its place in [state, arguments, others]; None: the same."""
        entries = self.captured.program.inputs
        known = {(e.kind, e.name): i for i, e in enumerate(entries)}
        order = tuple(known[e.kind, e.name] for e in self.program.inputs)
        return None if order == tuple(range(len(entries))) else order

    def run(
        self,
        weights: Weights,
        arguments: Sequence[torch.Tensor],
        replica: int,
        extra: Sequence[Any] = (),
    ) -> tuple[Any, ...]:
        """Run one micro-batch of one replica."""
        return self.executable.run(self.values(weights, arguments, replica, extra))

    def values(
        self,
        weights: Weights,
        arguments: Sequence[torch.Tensor],
        replica: int,
        extra: Sequence[Any] = (),
    ) -> list[Any]:
        """What the program is given for one micro-batch of one replica."""
        values = [*weights.row(replica), *arguments, *extra]
        order = self._order
        return values if order is None else [values[i] for i in order]

    def own_outputs(
        self, results: Sequence[Any], weights: Weights, arguments: Collection[int]
    ) -> list[torch.Tensor]:
        """The user's outputs, sharing memory with nothing that lives on.

        `arguments` holds the memory of the call's arguments.
        """
        taken: set[int] = set()
        owned = []
        for result in results[: self.user_outputs]:
            place = memory_of(result)
            if (
                place in taken
                or place in weights.memory
                or place in arguments
                or place in self._constants
                or _is_small_part(result)
            ):
                result = result.clone()
            taken.add(place)
            owned.append(result)
        return owned

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What forward returned, with these tensors for the ones the graph computes."""
        leaves = [
            tensors[leaf] if isinstance(leaf, int) else leaf.clone()
            for leaf in self.captured.leaves
        ]
        return unflatten(self.captured.structure, leaves)


def find(programs: Sequence[Compiled], signature: Signature, variant: Variant) -> Compiled | None:
    """The program compiled for such a call, if there is one."""
    for compiled in programs:
        if compiled.variant == variant and compiled.signature.same_as(signature):
            return compiled
    return None


def _is_small_part(tensor: torch.Tensor) -> bool:
    used = tensor.numel() * tensor.element_size()
    return tensor.untyped_storage().nbytes() > _SMALL_PART * max(used, _SMALL_BYTES)
