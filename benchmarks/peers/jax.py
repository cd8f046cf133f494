"""JAX: the whole step under `jit` with donated buffers, alone and in a `scan` of 8.

The models are written out in `jax_models.py`, the optimizers here, as a JAX user without further
libraries would. Weights start from the torch model's, so losses can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.peers.peer import Engine, Peer, Purpose, Settings
from benchmarks.workloads import Update, Workload

SCANNED = 8


def _start(update: Update, weights: Any) -> Any:
    import jax.numpy as jnp

    zeros = {name: jnp.zeros_like(value) for name, value in weights.items()}
    if update.kind == "sgd":
        return zeros if update.momentum else None
    return zeros, {name: jnp.zeros_like(value) for name, value in weights.items()}, jnp.zeros(())


def _apply(update: Update, weights: Any, grads: Any, state: Any) -> tuple[Any, Any]:
    """One update of all weights: torch's formulas."""
    if update.kind == "sgd":
        if update.momentum:
            state = grads = {n: update.momentum * state[n] + g for n, g in grads.items()}
        return {n: w - update.lr * grads[n] for n, w in weights.items()}, state
    first, second, count = state
    count = count + 1
    first = {n: 0.9 * first[n] + 0.1 * g for n, g in grads.items()}
    second = {n: 0.999 * second[n] + 0.001 * g * g for n, g in grads.items()}
    rate, root = update.lr / (1 - 0.9**count), (1 - 0.999**count) ** 0.5
    kept = 1 - update.lr * update.weight_decay
    weights = {
        n: kept * w - rate * first[n] / (second[n] ** 0.5 / root + 1e-8) for n, w in weights.items()
    }
    return weights, (first, second, count)


def _forward(workload: Workload) -> Callable[..., Any]:
    from benchmarks.peers.jax_models import FORWARDS

    forward = FORWARDS[type(workload.model()).__name__]
    return forward if workload.dropout is None else partial(forward, dropout=workload.dropout)


def _step(workload: Workload) -> Callable[..., Any]:
    """(state, batch) -> (state, loss), in the form that `lax.scan` takes."""
    import jax

    from benchmarks.peers.jax_models import cross_entropy

    forward = _forward(workload)

    def loss_of(weights: Any, buffers: Any, key: Any, x: Any, labels: Any) -> Any:
        logits, buffers = forward(weights, buffers, key, x, train=True)
        return cross_entropy(logits, labels), buffers

    def step(state: Any, batch: Any) -> Any:
        weights, buffers, moments, key = state
        key, used = jax.random.split(key)
        with_grad = jax.value_and_grad(loss_of, has_aux=True)
        (loss, buffers), grads = with_grad(weights, buffers, used, *batch)
        weights, moments = _apply(workload.update, weights, grads, moments)
        return (weights, buffers, moments, key), loss

    return step


def _state(workload: Workload) -> Any:
    import jax

    from benchmarks.peers.jax_models import from_torch

    weights, buffers = from_torch(workload.model())
    # XLA's own generator draws dropout masks faster than JAX's default one.
    return weights, buffers, _start(workload.update, weights), jax.random.key(0, impl="rbg")


def _wait(result: Any) -> None:
    import jax

    jax.block_until_ready(result)


def _numbers(result: Any) -> np.ndarray:
    return np.atleast_1d(np.asarray(result, dtype=np.float64)).ravel()


class Jax(Peer):
    """One jitted step a call."""

    name, family, needs = "jax", "jax", ("jax",)
    steps = 1

    def training(self, workload: Workload) -> Engine:
        """The state stays on the device and is donated to each call."""
        import jax

        from benchmarks.peers.jax_models import image_layout

        x, labels = workload.batch()
        batch = image_layout(x.numpy()), image_layout(labels.numpy())
        function, batch = self._called(_step(workload), batch)
        jitted = jax.jit(function, donate_argnums=0)
        state = [_state(workload)]

        def run(calls: int) -> Any:
            current, loss = state[0], None
            for _ in range(calls):
                current, loss = jitted(current, batch)
            state[0] = current
            return loss

        return Engine(run, _numbers, steps=self.steps, wait=lambda _: _wait(state))

    def _called(self, step: Callable[..., Any], batch: Any) -> tuple[Callable[..., Any], Any]:
        return step, batch

    def inference(self, workload: Workload) -> Engine:
        """The jitted forward."""
        import jax

        from benchmarks.peers.jax_models import from_torch, image_layout

        weights, buffers = from_torch(workload.model())
        forward = partial(_forward(workload), train=False)
        jitted = jax.jit(lambda *given: forward(given[0], given[1], None, given[2])[0])
        x = image_layout(workload.batch()[0].numpy())

        def run(calls: int) -> Any:
            result = None
            for _ in range(calls):
                result = jitted(weights, buffers, x)
                result.block_until_ready()  # an answer counts when it is there
            return result

        return Engine(run, _numbers, wait=_wait)


class JaxScan(Jax):
    """Eight steps a call, the loop inside the compiled program."""

    name = "jax-scan8"
    steps = SCANNED

    def takes(self, workload: Workload, purpose: Purpose) -> bool:
        """Not ResNet: XLA compiles convolutions inside a loop without its fast kernels."""
        return purpose == "training" and workload.name != "W4"

    def _called(self, step: Callable[..., Any], batch: Any) -> tuple[Callable[..., Any], Any]:
        import jax.numpy as jnp
        from jax import lax

        stacked = tuple(jnp.stack([part] * self.steps) for part in batch)
        return lambda state, parts: lax.scan(step, state, parts), stacked


def peers(settings: Settings) -> list[Peer]:
    """One step a call, and eight."""
    return [Jax(), JaxScan()]
