"""Dynamic loss scaling inside a step that optimises by hand.

    scaler.scale(loss)            times the scale, an input of the program
    scaler.unscale_(optimizer)    gradients divided by it; are they all finite?
    scaler.step(optimizer)        the update, kept only if they are: the program has no branches
    scaler.update()               the next scale and its counter: results of the program

The rules are those of `torch.amp.GradScaler`, which gets scale and counter back after each run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from pantile.runtime.whole_step import OptimizersInStep

_RULES = ("growth_factor", "backoff_factor", "growth_interval")


class ScalerInStep:
    """Stands for a `GradScaler` while a step is recorded."""

    def __init__(self, real: Any, optimizers: OptimizersInStep) -> None:
        self._real, self._optimizers = real, optimizers
        self._rules = {name: real.state_dict()[name] for name in _RULES}
        self._found: dict[int, torch.Tensor] = {}
        self._scale: torch.Tensor
        self._counter: torch.Tensor

    # For a run

    def surroundings(self) -> tuple[Any, ...]:
        """What a program depends on."""
        return tuple(self._rules.values())

    def inputs(self) -> list[torch.Tensor]:
        """Scale and counter."""
        saved = self._real.state_dict()
        row = [saved["scale"], float(saved["_growth_tracker"])]
        return [torch.tensor([row], dtype=torch.float32)]

    def give_back(self, results: Sequence[torch.Tensor]) -> None:
        """After a run: the real scaler goes on from here."""
        scale, counter = (float(result.reshape(-1)[0]) for result in results)
        saved = self._real.state_dict()
        self._real.load_state_dict({**saved, "scale": scale, "_growth_tracker": int(counter)})

    # While recording

    @contextmanager
    def recording(self, plugin: Any, given: torch.Tensor) -> Iterator[None]:
        """The plugin has this scaler inside."""
        self._scale, self._counter = given[0, 0], given[0, 1]
        self._found.clear()
        plugin.scaler = self
        try:
            yield
        finally:
            plugin.scaler = self._real

    def results(self) -> list[torch.Tensor]:
        """The scale and the counter that the step leaves."""
        return [self._scale, self._counter]

    def is_enabled(self) -> bool:
        """It is."""
        return True

    def get_scale(self) -> Any:
        """A number of the run: may be logged."""
        return self._scale.item()

    def scale(self, outputs: Any) -> Any:
        """The loss, or losses, times the scale."""
        if isinstance(outputs, torch.Tensor):
            return outputs * self._scale
        return type(outputs)(self.scale(output) for output in outputs)

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients; note whether all are finite."""
        if id(optimizer) in self._found:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update()."
            )
        inverse = self._scale.double().reciprocal().float()
        bad = torch.zeros((), dtype=torch.bool)
        with torch.no_grad():
            for group in optimizer.param_groups:
                for gradient in (p.grad for p in group["params"] if p.grad is not None):
                    bad = bad | ~torch.isfinite(gradient).all()
                    gradient.mul_(inverse.to(gradient.dtype))
        self._found[id(optimizer)] = bad

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """The optimizer's step; undone where a gradient was not finite."""
        if id(optimizer) not in self._found:
            self.unscale_(optimizer)
        bad = self._found[id(optimizer)]
        changed = self._optimizers.changed_by(optimizer)
        with torch.no_grad():
            before = [tensor.clone() for tensor in changed]
        result = optimizer.step(*args, **kwargs)
        with torch.no_grad():
            for tensor, old in zip(changed, before, strict=True):
                tensor.copy_(torch.where(bad, old, tensor))
        return result

    def update(self, new_scale: Any = None) -> None:
        """The next scale: smaller after an overflow, larger after long without one."""
        if new_scale is not None:
            self._scale = torch.as_tensor(new_scale, dtype=torch.float32)
            self._found.clear()
            return
        bad = torch.zeros((), dtype=torch.bool)
        for found in self._found.values():
            bad = bad | found
        self._found.clear()
        counter = self._counter + 1
        grown = self._scale * self._rules["growth_factor"]
        grows = (counter >= self._rules["growth_interval"]) & torch.isfinite(grown)
        kept = torch.where(grows, grown, self._scale)
        self._scale = torch.where(bad, self._scale * self._rules["backoff_factor"], kept)
        full = counter >= self._rules["growth_interval"]
        self._counter = torch.where(bad | full, torch.zeros_like(counter), counter)
