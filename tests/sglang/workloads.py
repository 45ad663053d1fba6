"""Random concurrent requests, the same for several caches."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from testing.sglang_cache import Cache

SYSTEM = range(1_000_000, 1_000_080)


class SideBySide:
    """Sends the same random requests to several caches. `hits`: cached tokens of each request, by cache.

    Args:
        clock: a list of one value, advanced in each step.
        plain: only whole requests of linear conversations. Otherwise waiting requests are matched repeatedly, some are aborted
            or retracted, and conversations branch.
    """

    def __init__(self, caches: Sequence[Cache], clock: list[float], seed: int, *, plain: bool) -> None:
        self.hits: list[list[int]] = [[] for _ in caches]
        self._caches = caches
        self._clock = clock
        self._random = random.Random(seed)
        self._plain = plain
        self._histories: dict[int, list[int]] = {}
        self._waiting: list[tuple[int, list[Any]]] = []
        self._running: list[tuple[int, list[Any]]] = []
        self._number = 0

    def run(self, steps: int, *, after: Callable[[], None] = lambda: None) -> None:
        for _ in range(steps):
            self._clock[0] += self._random.choice([0.0, 0.01, 1.0, 5.0])
            self._step()
            after()
        while self._waiting:
            self._start()
        while self._running:
            self._finish()

    def _step(self) -> None:
        what = self._random.random()
        if what < 0.4 or not (self._waiting or self._running):
            self._arrive()
        elif what < 0.5 and not self._plain:
            for cache, reqs in zip(self._caches, zip(*(each for _, each in self._waiting), strict=True), strict=False):
                for req in reqs:
                    cache.match(req)
        elif what < 0.7 and self._waiting:
            self._start()
        elif self._running:
            self._finish()
        if self._plain:
            while self._waiting:
                self._start()

    def _arrive(self) -> None:
        conversation = self._random.randrange(14)
        if any(conversation == other for other, _ in [*self._waiting, *self._running]):
            return
        system = [] if self._plain else SYSTEM
        history = self._histories.setdefault(conversation, list(system))
        history += [self._random.randrange(50_000) for _ in range(self._random.randrange(20, 90))]
        if len(history) > 700:
            del history[len(system) :]
            history += [self._random.randrange(50_000) for _ in range(50)]
        self._number += 1
        name = f"{conversation}-{self._number}"
        self._waiting.append((conversation, [cache.arrive(name, history) for cache in self._caches]))

    def _start(self) -> None:
        if len(self._running) >= 3:
            self._finish()
        conversation, reqs = self._waiting.pop(0)
        chunk = self._random.choice([None, 64])
        for cache, req, hits in zip(self._caches, reqs, self.hits, strict=True):
            hits.append(cache.match(req))
            cache.compute(req, chunk)
        self._running.append((conversation, reqs))

    def _finish(self) -> None:
        conversation, reqs = self._running.pop(self._random.randrange(len(self._running)))
        how = 1.0 if self._plain else self._random.random()
        reply = [self._random.randrange(50_000) for _ in range(self._random.randrange(2, 30))]
        for cache, req in zip(self._caches, reqs, strict=True):
            if how < 0.1:
                cache.retract(req)
            else:
                cache.end(req, reply, abort=how < 0.2)
        if how < 0.1:
            self._waiting.insert(0, (conversation, reqs))
        elif self._plain or self._random.random() < 0.7:
            self._histories[conversation] += reply
