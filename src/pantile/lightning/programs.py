"""The programs of one LightningModule: recorded when a step meets something new, then run.

    step, arguments ── a program that fits? ── yes ──► run ──► replay the tape ──► result
                              │ no
                              └──► record (again, if the step turns out to change attributes)

A program fits if the batch has the same outline, the module the same fingerprint, and the numbers
lead to the same conclusions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from pantile.capture.tracked import Facts
from pantile.errors import Error
from pantile.lightning.attributes import Attributes, Fed, Fingerprint, MoreInputs
from pantile.lightning.batches import Outline, take_apart
from pantile.lightning.profiler import ProgramTime
from pantile.lightning.recorder import Recorder, StepNumbers
from pantile.lightning.tape import Tape
from pantile.logging import logger
from pantile.runtime.step_module import StepProgram

_MOST_ATTEMPTS = 8
_MANY = (16, 64, 256, 1024)


@dataclass(frozen=True, eq=False)
class Inside:
    """What there is while a step is recorded: extra inputs and state beyond the module's own."""

    tape: Tape
    facts: Facts
    extras: Sequence[torch.Tensor]
    state: Mapping[str, Any]


Finish = Callable[[Any, Inside], tuple[list[torch.Tensor], Any]]


@dataclass(frozen=True)
class Kind:
    """What a program does with a step, besides calling it.

    The step is called in `context`. `finish` gets its result, and returns more tensors for the
    program to return and what describes them. `make` makes the executor.
    """

    name: str
    parts: int
    context: Callable[[Inside], AbstractContextManager[Any]]
    finish: Finish
    make: Callable[[Any, int, str], StepProgram]
    surroundings: Any = None


@dataclass(frozen=True, eq=False)
class Note:
    """What a recording leaves behind."""

    tape: Tape
    values: int
    more: Any


@dataclass(frozen=True, eq=False)
class Run:
    """The results of one run."""

    note: Note
    tensors: list[torch.Tensor]
    numbers: StepNumbers
    parts: int

    @property
    def more(self) -> list[torch.Tensor]:
        """The tensors that `Kind.finish` asked for."""
        return self.tensors[self.note.values :]

    def replay(self) -> Any:
        """Let the step's events take place; what the step returned."""
        tape = self.note.tape
        if tape.steps:
            self.numbers["global_step"]  # looked up now: events will count it on
        values = tape.merged(self.tensors[: self.note.values], self.parts)
        return tape.replay(values, self.numbers)


class Recording:
    """One program of a step, and what it is good for."""

    def __init__(
        self,
        owner: Programs,
        step: str,
        kind: Kind,
        outline: Outline,
        rest: tuple[Any, ...],
        fed: Fed,
    ) -> None:
        self.step, self.kind, self.outline = step, kind, outline
        #: The arguments after the batch; `int` stands for any number.
        self.rest = rest
        self._owner = owner
        self.fed = fed
        self.facts = Facts()
        self.numbers: StepNumbers
        self._look()
        self.program: StepProgram | None = None
        self.time = ProgramTime(f"{step} ({kind.name})", outline.described())

    def _look(self) -> None:
        self.attributes = self._owner.attributes(again=True)
        self._fingerprint = Fingerprint(self.attributes, self.fed)

    def fits(
        self, step: str, kind: Kind, outline: Outline, rest: tuple[Any, ...], numbers: StepNumbers
    ) -> bool:
        """Is this program the one for such a call?"""
        return (
            self.is_for(step, kind, outline, rest)
            and self._fingerprint.holds()
            and self.facts.hold(numbers)
        )

    def is_for(self, step: str, kind: Kind, outline: Outline, rest: tuple[Any, ...]) -> bool:
        """Is it of such a step, whatever the attributes and numbers are?"""
        mine = self.kind
        return (
            self.step == step
            and (mine.name, mine.parts) == (kind.name, kind.parts)
            and mine.surroundings == kind.surroundings
            and self.rest == rest
            and self.outline.same_as(outline)
        )

    def why_not(self, kind: Kind, outline: Outline, rest: tuple[Any, ...]) -> str:
        """Why this program of the same step is not the one for a call."""
        mine = self.kind
        if not self.outline.same_as(outline):
            return f"other inputs: {outline.described()}"
        if (mine.name, mine.parts) != (
            kind.name,
            kind.parts,
        ) or mine.surroundings != kind.surroundings:
            return f"another stage, precision or mode: {kind.name}, {kind.surroundings}"
        if self.rest != rest:
            return f"other arguments: {rest}"
        changed = self._fingerprint.differences()
        if changed:
            return f"other attributes: {', '.join(changed)}"
        return "another way through the step, decided by a number such as batch_idx"

    def fed_next(self) -> Fed | None:
        """With which inputs this recording would fit now; None if they cannot help."""
        return self._fingerprint.with_differences()

    def run(
        self, tensors: Sequence[torch.Tensor], extras: Sequence[torch.Tensor], numbers: StepNumbers
    ) -> Run:
        """Run the program; the first time it is recorded."""
        begin, profile = perf_counter(), self._owner.profile
        if self.program is None:
            with profile(f"[IPU]record {self.time.name}"):
                self._record(tensors, extras, numbers)
        assert self.program is not None
        try:
            with profile(f"[IPU]run {self.time.name}"):
                found, note = self.program(self._arguments(tensors, extras, numbers))
        except MoreInputs as more:  # the model has other tensors: it was recorded again
            self._start_again(self.program, more)
            return self.run(tensors, extras, numbers)
        self.time.add(perf_counter() - begin)
        return Run(note, found, numbers, self.kind.parts)

    def _start_again(self, program: StepProgram, more: MoreInputs) -> None:
        program.destroy()
        self.program, self.fed = None, more.fed
        self._look()

    def _record(
        self, tensors: Sequence[torch.Tensor], extras: Sequence[torch.Tensor], numbers: StepNumbers
    ) -> None:
        name = f"{type(self._owner.module).__name__}.{self.step}"
        self.numbers = numbers
        for _ in range(_MOST_ATTEMPTS):
            program = self.kind.make(self._function, self.kind.parts, name)
            try:
                arguments = self._arguments(tensors, extras, numbers)
                program.record(arguments, at_once=self._owner.at_once)
            except MoreInputs as more:
                self._start_again(program, more)
                continue
            self.program = program
            return
        raise Error(
            f"{self.step} changes other attributes each time it is recorded",
            fix="keep what it changes in buffers, or in attributes that are set in __init__",
        )

    def _arguments(
        self, tensors: Sequence[torch.Tensor], extras: Sequence[torch.Tensor], numbers: StepNumbers
    ) -> list[torch.Tensor]:
        parts = self.kind.parts
        leaves = (leaf for name in self.fed.tensors for leaf in self.attributes.leaves(name))
        fed = [_for_each_part(leaf, parts) for leaf in leaves]
        self._count = len(fed)
        return [*tensors, *fed, self.facts.fill(parts, numbers), *extras]

    @property
    def is_native(self) -> bool:
        """Does machine code run it?"""
        return self.program is not None and bool(self.program.executor.nativeDecisions())

    def _function(
        self, flat: Sequence[torch.Tensor], state: Mapping[str, Any]
    ) -> tuple[list[torch.Tensor], Note]:
        """What is recorded."""
        batch = len(self.outline.kinds)
        fed = [tensor[0] for tensor in flat[batch : batch + self._count]]
        slots, extras = flat[batch + len(fed)], flat[batch + len(fed) + 1 :]
        if self.program is not None:  # recorded again, because the model has other tensors
            self._look()
        self.facts.begin(self.numbers, slots)
        owner = self._owner
        arguments = [self.outline.build(flat[:batch])]
        arguments += [
            self.facts.number(f"argument {i}") if value is int else value
            for i, value in enumerate(self.rest)
        ]
        recorder = Recorder(owner.module, self.attributes, self.facts, self.fed)
        with recorder.recording(fed) as tape:
            inside = Inside(tape, self.facts, extras, state)
            with self.kind.context(inside):
                result = owner.call(self.step, arguments, tape)
            tape.result = tape.keep(result)
            more, description = self.kind.finish(result, inside)
        self._fingerprint.settle_used(recorder.used, recorder.made)
        values = tape.close()
        self.facts.slots = None
        return [*values, *more], Note(tape, len(values), description)


def _for_each_part(tensor: torch.Tensor, parts: int) -> torch.Tensor:
    value = tensor.detach().unsqueeze(0)
    return value if parts == 1 else value.expand(parts, *value.shape[1:]).contiguous()


class Programs:
    """All programs of one module."""

    def __init__(self, module: Any, internal: frozenset[str]) -> None:
        self.module = module
        self._internal = internal
        #: Callbacks whose hooks run within a step.
        self.observers: tuple[Any, ...] = ()
        self._attributes = Attributes(module, internal)
        self.recordings: list[Recording] = []
        self.profile: Callable[[str], AbstractContextManager[Any]] = lambda _: nullcontext()
        self._ended: list[ProgramTime] = []
        #: Is told why a program is made.
        self.tell: Callable[[str], None] | None = None
        #: Resumed: the run that goes on had compiled its programs.
        self.at_once = False
        #: While a step is recorded.
        self.tape: Tape | None = None

    def attributes(self, *, again: bool = False) -> Attributes:
        """The module's attributes; looked at `again` when a program is recorded."""
        if again:
            self._attributes = Attributes(self.module, self._internal, self.observers)
        return self._attributes

    def call(self, step: str, arguments: Sequence[Any], tape: Tape) -> Any:
        """The step itself; what it does is noted on the tape."""
        self.tape = tape
        try:
            return getattr(self.module, step)(*arguments)
        finally:
            self.tape = None

    def run(
        self, step: str, kind: Kind, args: Sequence[Any], extras: Sequence[torch.Tensor] = ()
    ) -> Run:
        """Run a step, recorded before or now."""
        tensors, outline = take_apart(args[0])
        given = {f"argument {i}": v for i, v in enumerate(args[1:]) if type(v) is int}
        numbers = StepNumbers(self.module, self.attributes, given)
        rest = tuple(int if type(v) is int else v for v in args[1:])
        for position, known in enumerate(self.recordings):
            if known.fits(step, kind, outline, rest, numbers):
                if position:
                    self.recordings.insert(0, self.recordings.pop(position))
                known.numbers = numbers
                return known.run(tensors, extras, numbers)
        alike = (known for known in self.recordings if known.is_for(step, kind, outline, rest))
        last = next(alike, None)
        fed = (last.fed_next() if last is not None else None) or Fed()
        if self.tell is not None:
            self.tell(f"IPU: {self._reason(step, kind, outline, rest)}")
        made = Recording(self, step, kind, outline, rest, fed)
        run = made.run(tensors, extras, numbers)
        self.recordings.insert(0, made)
        self._warn(step)
        return run

    def _reason(self, step: str, kind: Kind, outline: Outline, rest: tuple[Any, ...]) -> str:
        known = [recording for recording in self.recordings if recording.step == step]
        why = known[0].why_not(kind, outline, rest) if known else "first call"
        return f"compiles {step} ({kind.name}), program {len(known) + 1} of it: {why}"

    def _warn(self, step: str) -> None:
        count = sum(known.step == step for known in self.recordings)
        if count in _MANY:
            logger.warning(
                "%s was compiled %d times, for different batches, attributes or branches. A number "
                "that changes from step to step is best kept in a buffer.",
                step,
                count,
            )

    def times(self) -> list[ProgramTime]:
        """What the programs took, also those that were dropped since the last `begin`."""
        for known in self.recordings:
            known.time.engine = "native" if known.is_native else "reference"
        return [*self._ended, *(known.time for known in reversed(self.recordings))]

    def begin(self) -> None:
        """Drop every program, and what was counted."""
        self.forget()
        self._ended = []

    def forget(self) -> None:
        """Drop every program."""
        self._ended = self.times()
        for known in self.recordings:
            if known.program is not None:
                known.program.destroy()
        self.recordings.clear()
