"""Every error raised on purpose.

    Error                            poptorch.Error: the root of them all
    ├── RecoverableError             the device can be reset (kept for PopTorch scripts)
    ├── UnrecoverableError           it cannot
    ├── CaptureError                 forward cannot become a static graph
    │   ├── DataDependentError       … because Python asked for the value of a tensor
    │   ├── LossError                … because there is no loss, or more than one
    │   ├── ForwardError             … because it raised (also of the class that was raised)
    │   └── PlacementError           … because a block or stage is impossible
    ├── ExecutionError               an op failed while running (also of the class it raised)
    │   ├── CompilerMissing          … or cannot run, because there is no C++ compiler
    │   ├── CompilerFailed           … or because the C++ compiler refused the program
    │   └── FloatingPointFault       … or made a number that is not finite (FloatingPointError)
    ├── OperandError                 an op was given an argument it cannot take
    │   ├── OperandValueError        … (ValueError)
    │   ├── OperandTypeError         … (AssertionError)
    │   └── OperandKeyError          … (KeyError)
    ├── HookError                    a hook that cannot be called (RuntimeError)
    ├── ProgramError                 a graph, text form or pass broke an invariant
    ├── ScheduleError                a schedule cannot be read, or not be executed (ValueError)
    ├── InputMismatch                an argument does not fit the compiled signature
    │   ├── ArgumentError            … because forward does not take it (AssertionError)
    │   └── BatchError               … because dim 0 does not divide (AssertionError)
    ├── OptionError                  an option has a bad value (ValueError)
    │   ├── OptionTypeError          … of a wrong type (AssertionError)
    │   ├── OptionRangeError         … outside what it allows (AssertionError)
    │   ├── StrategyError            … or stages and phases do not add up (AssertionError)
    │   ├── UnknownOption            … or no such option exists (AttributeError)
    │   │   └── UnknownKeyword       … as a keyword of `set` (AssertionError)
    │   ├── FrozenOptions            … or is set too late (AttributeError)
    │   ├── LauncherOption           … or belongs to the launcher (RuntimeError)
    │   └── ConfigFileError          … or a line of an options file cannot be read
    ├── OptimizerError               an optimizer cannot be used here (ValueError)
    │   ├── ForeignParameter         … over parameters of another model (KeyError)
    │   ├── OptimizerTypeError       … of that type, or without that attribute (AssertionError)
    │   └── OptimizerStateError      its state cannot be loaded (RuntimeError)
    ├── StateError                   the executor is not in a state to do that
    │   ├── AlreadyWrapped           the model belongs to another executor (RuntimeError)
    │   ├── NoHardware               there is no device to ask about (AssertionError)
    │   └── OfflineError             the device is only a compile target (AssertionError)
    ├── StoreError                   a file cannot be written, or cannot be read
    │   ├── DamagedFile              … because it is not what was written
    │   ├── UnknownFormat            … because another version or program wrote it
    │   └── Untrusted                … because other users could have changed it
    └── DataError                    a loader or dataset misbehaved
        ├── DataArgumentError        … because of an argument (AssertionError)
        ├── GraphOptionError         … because of an argument of a graph loader (ValueError)
        ├── GraphSizeError           … because a graph does not fit its batch (RuntimeError)
        ├── WorkerDied               … because its worker process ended
        └── WorkerStalled            … because its worker process does not go on

Each carries what went wrong and, as `fix`, what to do about it. All survive pickling, so a
worker process can send one to its parent.
"""

from __future__ import annotations

from typing import Any


class Error(Exception):
    """An error with a message, a fix and, when known, the user's line.

    `message`, `type` and `location` are the attributes PopTorch clients read.
    """

    type = "poptorch_py_error"
    #: Does the text begin with the type, as PopTorch's own errors do?
    shows_type = False

    def __init__(self, message: str, *, fix: str | None = None, location: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix
        self.location = location

    def __str__(self) -> str:
        place = f"\n  at: {self.location}" if self.location else ""
        fix = f"\n  fix: {self.fix}" if self.fix else ""
        kind = f"'{self.type}': " if self.shows_type else ""
        return f"{kind}{self.message}{place}{fix}"

    def __reduce__(self) -> tuple[Any, ...]:
        kinds = next((k for k, cls in _combined.items() if cls is type(self)), (type(self),))
        return (_rebuild, (kinds, self.__dict__.copy(), self.message))


def _rebuild(kinds: tuple[Any, ...], attributes: dict[str, Any], message: str) -> Error:
    cls = combined(*kinds) if len(kinds) == 2 else kinds[0]
    error: Error = cls.__new__(cls, message)
    Exception.__init__(error, message)
    error.__dict__.update(attributes)
    return error


class RecoverableError(Error):
    """The device reported a fault that a reset would cure."""

    shows_type = True
    type = "poplar_recoverable_runtime_error"

    def __init__(self, message: str, *, recovery_action: str = "FULL_RESET", **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.recovery_action = recovery_action


class UnrecoverableError(Error):
    """The device reported a fault that no reset cures."""

    shows_type = True
    type = "poplar_unrecoverable_runtime_error"


class CaptureError(Error):
    """`forward` cannot be recorded as a static graph."""


class DataDependentError(CaptureError):
    """Python needed the value of a tensor while the graph was being recorded."""


class LossError(CaptureError):
    """No loss was found, or more than one."""


class ForwardError(CaptureError):
    """`forward` itself raised. Instances are also of the class that was raised."""

    #: Is the text what was raised and no more? So in strict mode; the log has the rest.
    bare = False

    def __str__(self) -> str:
        return self.message if self.bare else super().__str__()


class PlacementError(CaptureError):
    """A block, stage or device count that cannot be."""


class OperandError(Error):
    """An op was given an argument it cannot take."""


class OperandValueError(OperandError, ValueError):
    """… where PopTorch scripts expect a ValueError."""


class OperandTypeError(OperandError, AssertionError):
    """… where PopTorch scripts expect an AssertionError."""


class OperandKeyError(OperandError, KeyError):
    """… where PopTorch scripts expect a KeyError."""


class HookError(Error, RuntimeError):
    """A hook that cannot be called."""


class ExecutionError(Error):
    """An op failed while the program ran. Instances are also of the class that was raised."""


class CompilerMissing(ExecutionError):
    """The native engine needs a C++ compiler, and there is none that works."""


class CompilerFailed(ExecutionError):
    """The C++ compiler refused the text of a program."""


class FloatingPointFault(ExecutionError, FloatingPointError):
    """An op made an infinity or a NaN, while floating-point exceptions were enabled."""


class ProgramError(Error):
    """A graph, its text form or a pass broke an invariant."""


class ScheduleError(Error, ValueError):
    """A schedule that cannot be read, or could not be executed."""


class InputMismatch(Error):
    """An argument does not fit the signature the model was compiled for."""


class ArgumentError(InputMismatch, AssertionError):
    """An argument that `forward` does not take."""


class BatchError(InputMismatch, AssertionError):
    """Dim 0 of an input does not divide into micro-batches."""


class OptionError(Error, ValueError):
    """An option was given a value it cannot have."""


class OptionTypeError(OptionError, AssertionError):
    """An option was given a value of the wrong type."""


class OptionRangeError(OptionError, AssertionError):
    """An option was given a value outside what it allows."""


class StrategyError(OptionError, AssertionError):
    """The stages or phases of an execution strategy do not add up."""


class UnknownOption(OptionError, AttributeError):
    """There is no option of that name."""


class UnknownKeyword(UnknownOption, AssertionError):
    """There is no option of that name, said a keyword of `set`."""


class FrozenOptions(OptionError, AttributeError):
    """The options are in use and cannot change any more."""


class LauncherOption(OptionError, RuntimeError):
    """The launcher decides this option; a script cannot."""


class ConfigFileError(OptionError):
    """A line of an options file cannot be read."""


class OptimizerError(Error, ValueError):
    """The optimizer cannot be used as asked."""


class ForeignParameter(OptimizerError, KeyError):
    """The optimizer has a parameter that is not the wrapped model's."""


class OptimizerTypeError(OptimizerError, AssertionError):
    """An optimizer of an unsupported type, or an attribute it does not have."""


class OptimizerStateError(OptimizerError, RuntimeError):
    """An optimizer state that cannot be loaded."""


class StateError(Error):
    """The executor is not in a state in which it could do that."""


class AlreadyWrapped(StateError, RuntimeError):
    """The model already belongs to a live training executor."""


class NoHardware(StateError, AssertionError):
    """There is no device to ask about."""


class OfflineError(StateError, AssertionError):
    """The device is offline: programs can be compiled for it, not run."""


class StoreError(Error):
    """A file of the cache, an export or a checkpoint cannot be written or read."""


class DamagedFile(StoreError):
    """A file is not what was written: cut short, changed, or under another name."""


class UnknownFormat(StoreError):
    """A file is of another program, of another kind, or of a format version not known here."""


class Untrusted(StoreError):
    """A file that would be run belongs to, or can be changed by, another user."""


class DataError(Error):
    """A data loader, dataset or worker misbehaved."""


class DataArgumentError(DataError, AssertionError):
    """An argument of a data loader that cannot be."""


class GraphOptionError(DataError, ValueError):
    """A size or setting for batches of graphs that cannot be."""


class GraphSizeError(DataError, RuntimeError):
    """Graphs do not fit into a batch of fixed size."""


class WorkerDied(DataError):
    """A worker process was killed, crashed or ended itself."""


class WorkerStalled(DataError):
    """A worker process gives no sign of life, or delivers nothing."""


_combined: dict[tuple[type[Error], type[BaseException]], type[Error]] = {}


def combined(ours: type[Error], theirs: type[BaseException]) -> type[Error]:
    """A class that is both: our error, and the one a user may already catch."""
    if issubclass(ours, theirs):
        return ours
    key = (ours, theirs)
    if key not in _combined:
        _combined[key] = type(ours.__name__, (ours, theirs), {"__module__": __name__})
    return _combined[key]


def create_poptorch_error(message: str) -> Error:
    """The helper PopTorch clients call to build an error."""
    error = Error(message)
    error.shows_type = True
    return error
