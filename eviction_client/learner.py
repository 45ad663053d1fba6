"""What is learnt from finished requests, off the scheduler's thread: how far predictions may be trusted, and what the store
is told and asked.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from eviction_client.clock import MonotoneClock
from eviction_client.conversations import Conversations
from eviction_client.settings import ClientSettings
from eviction_client.shadow import ShadowCounters, Shadows
from eviction_client.stores.base import BlockHash, MetadataStore

MAX_WAITING: Final = 10_000
"""Finished requests that may wait to be learnt from; over it the oldest are not."""
ROUNDS_FOR_AN_ANSWER: Final = 50
"""Rounds in which an answer of the store is looked for: one that is away may never give it."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that has ended.

    Attributes:
        session: names its conversation in all engines; None where nobody said.
        blocks: hashes of its chain from the start, as far as computed.
        prompt_blocks: how many of these its prompt filled.
        trusting, lru: its scores under full trust in the predictions, and under none.
        score: the one that its blocks got.
    """

    session: str | None
    blocks: Sequence[BlockHash]
    prompt_blocks: int
    trusting: float
    lru: float
    score: float


class Learner:
    """Learns in rounds. ``take_in``, ``ask`` and ``take_answers`` are for the scheduler's thread, the rest for the rounds'.

    Args:
        capacity: blocks of the engine's cache.
        store: where shared blocks keep the scores of others; None where scores are not pooled.

    Attributes:
        beta: how far predictions are trusted at present.
    """

    def __init__(self, settings: ClientSettings, *, capacity: int, store: MetadataStore | None) -> None:
        self.beta = 1.0
        self._guards = settings.guard
        self._store = store
        self._trim_every_s = settings.tau_s
        self._trimmed_at = time.monotonic()
        self._shadows = Shadows(capacity)
        self._conversations = Conversations()
        self._waiting: deque[Finished] = deque(maxlen=MAX_WAITING)
        self._taken_in = self._learnt = 0
        self._question: Sequence[BlockHash] | None = None
        self._rounds_left = 0
        self._answers: dict[BlockHash, float] = {}

    def take_in(self, finished: Finished) -> None:
        """Leave a request to be learnt from."""
        self._waiting.append(finished)
        self._taken_in += 1

    def ask(self, blocks: Sequence[BlockHash]) -> None:
        """Leave a question to the store: the scores of the blocks to be evicted next."""
        self._question = blocks

    def take_answers(self) -> dict[BlockHash, float]:
        """Return the scores that the store has answered with since the last call."""
        answers = self._answers
        if answers:
            self._answers = {}
        return answers

    def learn(self) -> bool:
        """Learn from all that was left; return whether an answer of the store is expected soon."""
        store = self._store
        while self._waiting:
            finished = self._waiting.popleft()
            beta = self._shadows.observe(finished.blocks, finished.prompt_blocks, finished.trusting, finished.lru)
            if self._guards:
                self.beta = beta
            if store is not None and finished.blocks:
                store.record(self._conversations.name(finished.session, finished.blocks), finished.blocks, finished.score)
            self._learnt += 1
            # Offer the GIL to the scheduler's thread, which would else wait for the interpreter's switch interval, 5 ms.
            time.sleep(0)
        if store is not None:
            question, self._question = self._question, None
            if question:
                store.look_ahead(question)
                self._rounds_left = ROUNDS_FOR_AN_ANSWER
            if self._rounds_left:
                self._rounds_left -= 1
                answers = store.take_answers()
                if answers:
                    self._answers, self._rounds_left = answers, 0
        return self._rounds_left > 0

    def trim(self, clock: MonotoneClock) -> None:
        """Once per tau, let the store forget what has sunk out of sight."""
        at = time.monotonic()
        if self._store is not None and at - self._trimmed_at >= self._trim_every_s:
            self._trimmed_at = at
            self._store.trim(clock.now())

    @property
    def settled(self) -> bool:
        """Whether everything taken in so far has been learnt from."""
        return self._learnt >= self._taken_in

    @property
    def shadow_counters(self) -> ShadowCounters:
        """What the shadow caches have hit."""
        return self._shadows.counters

    @property
    def regret(self) -> float:
        """Blocks per request that LRU would have hit more than full trust, of the sampled ones; negative: predictions pay."""
        return self._shadows.guard.regret
