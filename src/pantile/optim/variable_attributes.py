"""Which hyper-parameters of an optimizer may change after the model was compiled."""

from __future__ import annotations

from collections.abc import Iterable

from pantile.errors import OptimizerTypeError


class VariableAttributes:
    """The attributes of an optimizer that are streamed to the device before each step.

    An attribute is variable when it was passed to the constructor or marked as such; every other
    one is a constant, which strict mode embeds in the compiled program.
    """

    def __init__(
        self, variable_attributes: Iterable[str], allowed_attributes: Iterable[str]
    ) -> None:
        # PopTorch's names: scripts that make everything variable assign one to the other.
        self._allowed_attributes = list(allowed_attributes)
        self._variable_attributes = [self._known(name) for name in variable_attributes]

    def isConstant(self, attr: str) -> bool:
        """True if a change of `attr` after compilation would have no effect."""
        return self._known(attr) not in self._variable_attributes

    def markAsConstant(self, attr: str) -> None:
        """Embed the present value of `attr` when the model is compiled."""
        if not self.isConstant(attr):
            self._variable_attributes.remove(attr)

    def markAsVariable(self, attr: str) -> None:
        """Let `attr` change after the model is compiled."""
        if self.isConstant(attr):
            self._variable_attributes.append(attr)

    def knows(self, attr: str) -> bool:
        """True if the optimizer has an attribute of that name."""
        return attr in self._allowed_attributes

    def _known(self, attr: str) -> str:
        if attr not in self._allowed_attributes:
            raise OptimizerTypeError(
                f"attr={attr!r} is not an attribute of this optimizer",
                fix=f"use one of: {', '.join(self._allowed_attributes)}",
            )
        return attr
