"""Turn what torch raises during capture into errors that name the line and the way out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from pantile.capture.source import place_of_error
from pantile.errors import CaptureError, DataDependentError, Error, ForwardError, combined
from pantile.logging import logger
from pantile.program.advice import advise, describe
from pantile.program.spec import scalar_name

_BRANCH_FIX = (
    "choose with torch.where(condition, a, b) or torch.cond(...), "
    "or compute the value outside forward and pass it as a Python argument"
)
_SHAPE_FIX = "use an op of fixed size: torch.where, masked_fill, topk, or a padded mask"

# What forward may raise that becomes our error too; classes of the user's own pass unchanged.
_PYTHON_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)

# What a fake tensor says when Python wants its memory or its value.
_VALUE_PHRASES = (
    "Cannot access data pointer of Tensor",
    ".numpy() is not supported for tensor subclasses",
    "Cannot copy out of meta tensor",
    "Cannot call numel() on tensor with symbolic sizes",
    "It appears that you're trying to get value out of a tracing tensor",
    "Can't call numpy() on",
    "data-dependent",
    "its data is not allocated yet",
)


# How the shape rules of torch refuse to write a result into a tensor of another kind.
_NO_CAST = re.compile(
    r"Attempting to cast from torch\.(\w+) to out tensor with dtype torch\.(\w+), .*"
)


@contextmanager
def explained(arguments: Mapping[str, Any], *, strict: bool = False) -> Iterator[None]:
    """Errors raised inside become ours, with the user's file and line.

    Strict mode keeps the text of what forward raised, which scripts of PopTorch compare.
    """
    try:
        yield
    except Error as error:
        if not error.location:
            error.location = place_of_error(error.__traceback__)
        raise
    except (DataDependentOutputException, GuardOnDataDependentSymNode) as error:
        raise DataDependentError(
            "forward asks for the value of a tensor (an `if`, int(), float(), .item() or .tolist())"
            " while the graph is being recorded",
            fix=_BRANCH_FIX,
            location=place_of_error(error.__traceback__),
        ) from error
    except DynamicOutputShapeException as error:
        raise DynamicShapeError(
            error.func,
            f"the size of the result of {error.func} depends on the data",
            fix=_SHAPE_FIX,
            location=place_of_error(error.__traceback__),
        ) from error
    except (UnsupportedOperatorException, UnsupportedFakeTensorException) as error:
        raise CaptureError(
            f"this op has no shape rule, so it cannot be recorded: {error}",
            fix="register one with torch.library.register_fake, or compute it outside forward",
            location=place_of_error(error.__traceback__),
        ) from error
    except _PYTHON_ERRORS as error:
        if is_users_class(type(error)):
            raise
        raise _failed(error, arguments, strict=strict) from error


class DynamicShapeError(DataDependentError, DynamicOutputShapeException):
    """The size of a tensor depends on data. Also torch's own class, which clients catch."""

    def __init__(self, func: object, message: str, *, fix: str, location: str) -> None:
        DataDependentError.__init__(self, message, fix=fix, location=location)
        self.func = func  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, (kinds, attributes, message) = super().__reduce__()
        return rebuild, (kinds, {**attributes, "func": str(self.func)}, message)


def is_users_class(kind: type) -> bool:
    """True for a class that is neither Python's nor torch's: it was raised to be caught."""
    return kind.__module__.partition(".")[0] not in ("builtins", "torch")


def _failed(error: Exception, arguments: Mapping[str, Any], *, strict: bool) -> Error:
    place = place_of_error(error.__traceback__)
    text = _NO_CAST.sub(_as_eager_says, str(error))
    if any(phrase in text for phrase in _VALUE_PHRASES):
        return DataDependentError(
            f"forward asks for the value of a tensor while the graph is being recorded: {text}",
            fix=_BRANCH_FIX,
            location=place,
        )
    kind = next(cls for cls in type(error).__mro__ if cls.__module__ == "builtins")
    given = f"arguments of one micro-batch: {describe(arguments)}"
    fix = advise(text, arguments)
    failure = combined(ForwardError, kind)(
        text if strict else f"forward failed with {kind.__name__}: {text}\n  {given}",
        fix=fix,
        location=place,
    )
    if strict:
        assert isinstance(failure, ForwardError)
        failure.bare = True
        logger.info("forward failed; %s\n  at: %s\n  fix: %s", given, place, fix)
    return failure


def _as_eager_says(refusal: re.Match[str]) -> str:
    result, wanted = (scalar_name(getattr(torch, name)) for name in refusal.groups())
    return f"result type {result} can't be cast to the desired output type {wanted}"
