"""A random course of requests for vLLM's CPU offload tier. The real tier and the simulated one must give the same digest.

They run in different environments, so the tests compare digests: `tests/engine/test_cpu_tier.py` runs vLLM's own manager,
`tests/unit/simulator/test_offload.py` the simulator.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

CHUNKS = 24
DIGEST = "c84a532e1dfa910e"
"""Digest of vLLM's own LRU."""


class Step(NamedTuple):
    """One request, which begins and ends.

    Attributes:
        now: seconds since the epoch.
        chain: content ids of its prompt.
        had: how many of them, from the first, the cache above has.
    """

    number: int
    now: float
    chain: list[int]
    had: int


def steps() -> Iterator[Step]:
    """Yield requests: new ones, some longer than the tier, and later turns."""
    rng, contents, now = random.Random(5), count(), 1e9
    chains: list[list[int]] = []
    for number in range(600):
        now += rng.random() * 3
        before = rng.choice(chains)[: rng.randint(1, 12)] if chains and rng.random() < 0.6 else []
        chain = before + [next(contents) for _ in range(rng.choice((1, 3, 6, 20)))]
        chains = [*chains[-8:], chain]
        yield Step(number, now, chain, rng.randint(0, 2))
        rng.gauss(0.0, 9.0)  # the digest is of a course with this draw


class Seen:
    """Digest of the loaded chunks and of the tier's content by last use, after each request."""

    def __init__(self) -> None:
        self.loaded = 0
        self._digest = hashlib.sha256()

    def add(self, loaded: int, recent: Sequence[int]) -> None:
        """Add a request's result."""
        self.loaded += loaded
        self._digest.update(f"{loaded} {list(recent)}\n".encode())

    @property
    def digest(self) -> str:
        """The digest so far."""
        return self._digest.hexdigest()[:16]
