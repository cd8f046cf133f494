"""Random numbers of a run.

Without a seed the engine draws from torch's own generator, in the order eager would: same bits.
With `Options.randomSeed(s)` every replica has its own stream: before micro-batch `n` of replica
`r` the generator is seeded from (s, r, n), and torch's generator is put back afterwards. The state
is three kinds of numbers, so it can be saved, restored and resumed exactly. The log tells of it as
of something on another device.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pantile.errors import StateError
from pantile.logging import logger

# torch has one generator for the CPU. While one executor has its own state in it, no other program
# of ours may draw from it.
generator_in_use = threading.RLock()


class RandomStreams:
    """The random state of one executor."""

    def __init__(self, seed: int | None, replicas: int) -> None:
        self._seed = seed
        self._counters = [0] * replicas
        self._was_read = False

    def read(self) -> list[int]:
        """The state, brought to the host; it goes back to the device with the next `send`."""
        logger.debug("Reading random seed")
        logger.debug("Reading RNG state")
        self._was_read = True
        return self.state

    def send(self) -> None:
        """Tell the device the seed, and the state it had when it was read, if it was."""
        if self._seed is not None:
            logger.debug("Setting random seed to %d", self._seed)
        if self._was_read:
            logger.debug("Setting RNG state")

    @contextmanager
    def micro_batch(self, replica: int) -> Iterator[None]:
        """Draws inside belong to the next micro-batch of this replica."""
        with generator_in_use:
            if self._seed is None:
                yield
                return
            outside = torch.get_rng_state()
            torch.default_generator.manual_seed(self._derive(replica, self._counters[replica]))
            self._counters[replica] += 1
            try:
                yield
            finally:
                torch.set_rng_state(outside)

    @contextmanager
    def update(self) -> Iterator[None]:
        """Draws inside belong to the update after the micro-batches that ran until now."""
        with generator_in_use:
            if self._seed is None:
                yield
                return
            outside = torch.get_rng_state()
            torch.default_generator.manual_seed(self._derive(-2, self._counters[0]))
            try:
                yield
            finally:
                torch.set_rng_state(outside)

    def native_stream(self) -> tuple[int, list[int]]:
        """The seed of a native run, and how many micro-batches each replica ran before.

        Without a seed it is drawn from torch's generator, so `torch.manual_seed` decides it.
        """
        if self._seed is not None:
            return self._derive(-1, 0), list(self._counters)
        with generator_in_use:
            return int(torch.randint(1 << 62, ())), [0] * len(self._counters)

    def advance(self, micro_batches: int) -> None:
        """Every replica ran so many micro-batches natively."""
        self._counters = [count + micro_batches for count in self._counters]

    def _derive(self, replica: int, counter: int) -> int:
        text = f"{self._seed}/{replica}/{counter}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1

    @property
    def state(self) -> list[int]:
        """`[seed, *counters]`; without a seed, torch's own generator is the state."""
        if self._seed is None:
            return [torch.initial_seed(), *torch.get_rng_state().tolist()]
        return [self._seed, *self._counters]

    @state.setter
    def state(self, values: list[int]) -> None:
        generator = torch.get_rng_state().numel()
        if self._seed is None and len(values) == 1 + generator:
            torch.set_rng_state(torch.tensor(values[1:], dtype=torch.uint8))
            return
        if len(values) != 1 + len(self._counters):
            raise StateError(
                f"rng_state has {len(values)} numbers; this executor has {len(self._counters)} "
                f"replica(s) and needs {1 + len(self._counters)}",
                fix="assign the rng_state of an executor with the same replicationFactor",
            )
        self._seed, self._counters = int(values[0]), [int(v) for v in values[1:]]
        if any(self._counters):
            logger.debug("Setting RNG state")


def update_seeds(seed: int, counter: int, count: int) -> list[int]:
    """Seeds below 2**62 for the updates of a native run."""
    texts = (f"{seed}/update/{counter}/{i}".encode() for i in range(count))
    digests = (hashlib.blake2b(text, digest_size=8).digest() for text in texts)
    return [int.from_bytes(digest, "little") >> 2 for digest in digests]
