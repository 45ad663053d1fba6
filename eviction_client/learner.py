"""What is learnt from finished requests, off the scheduler's thread: whether credit is trusted, and what the store is told and
asked.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

from eviction_client.clock import MonotoneClock
from eviction_client.conversations import Conversations
from eviction_client.credit import CreditTable
from eviction_client.finished import Finished
from eviction_client.score import Keys
from eviction_client.settings import ClientSettings
from eviction_client.shadow import ShadowCounters, Shadows
from eviction_client.stores.base import BlockHash, ConversationId, MetadataStore
from eviction_client.tier import Tier

MAX_WAITING: Final = 10_000
"""Finished requests that may wait to be learnt from; over it the oldest are not."""
ROUNDS_FOR_AN_ANSWER: Final = 50
"""Rounds in which an answer of the store is looked for: one that is away may never give it."""
TRIM_EVERY_S: Final = 100.0
MAX_UNANSWERED: Final = 10_000
"""Conversations whose latest turn may still get an answer; over it the oldest's is not told to the store."""

MOST_FAILURES: Final = 3
"""Failures of a round after which nothing is learnt any more: least recent use is in force until the engine restarts."""

Late = tuple[CreditTable | None, float]
"""What became of an answer that was waited for: its credit and the key that this gave; None: there is none."""


class Learner:
    """Learns in rounds. ``take_in``, ``ask`` and ``take_answers`` are for the scheduler's thread, the rest for the rounds'.

    Args:
        capacity: blocks of the engine's cache.
        store: where shared blocks keep the scores of others; None where scores are not pooled.

    Attributes:
        trusting: credit is in force.
        failures: of rounds.
        tiers: below the engine's cache; they learn from the same requests.
    """

    def __init__(self, settings: ClientSettings, *, capacity: int, store: MetadataStore | None) -> None:
        self.tiers: list[Tier] = []
        self.trusting = not settings.guard
        self.failures = 0
        self._guards = settings.guard
        self._pools = settings.pools != "off"
        self._store = store
        self._trimmed_at = time.monotonic()
        self._capacity = capacity
        self._shadows = Shadows(capacity)
        self._conversations = Conversations()
        self._waiting: deque[tuple[Finished, Late | None]] = deque(maxlen=MAX_WAITING)
        """Requests, and what became of those that were waited for."""
        self._unanswered: OrderedDict[ConversationId, Finished] = OrderedDict()
        self._name_of: OrderedDict[Finished, ConversationId] = OrderedDict()
        self._taken_in = self._learnt = 0
        self._question: Sequence[BlockHash] | None = None
        self._rounds_left = 0
        self._answers: dict[BlockHash, float] = {}

    def take_in(self, finished: Finished, late: Late | None = None) -> None:
        """Leave a request to be learnt from; once more, where its answer was waited for, with what became of that."""
        self._waiting.append((finished, late))
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
            finished, late = self._waiting.popleft()
            try:
                if self.failures >= MOST_FAILURES:
                    pass
                elif late is None:
                    self._learn_from(finished)
                else:
                    self._lay(finished, *late)
            finally:
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

    def distrust(self) -> None:
        """After a failure: put least recent use into force, and begin to collect evidence again.

        Without a guard nothing collects evidence, and least recent use stays in force; so it does after MOST_FAILURES.
        """
        self.trusting = False
        self.failures += 1
        for tier in self.tiers:
            tier.distrust()
        self._shadows = self._shadows.renewed(self._capacity)

    def _learn_from(self, finished: Finished) -> None:
        name = self._conversations.name(finished.session, finished.blocks) if self._pools and finished.blocks else None
        for tier in self.tiers:  # first: what the pool has of this request is what it had before
            tier.learn(finished, name, self._shadows.holding(self.trusting))
        trusting = self._shadows.observe(finished, name)
        if self._guards:
            self.trusting = trusting
        if self._store is not None and name is not None:
            self._record(self._store, name, finished)
            earlier = self._unanswered.pop(name, None)
            if earlier is not None:
                self._name_of.pop(earlier, None)
            if finished.awaited:
                self._unanswered[name] = finished
                self._name_of[finished] = name
                for memory in (self._unanswered, self._name_of):
                    if len(memory) > MAX_UNANSWERED:
                        memory.popitem(last=False)

    def _record(self, store: MetadataStore, name: ConversationId, finished: Finished) -> None:
        """Tell the store the keys of a request's blocks: of those that it alone has used, that they go first if it is done."""
        blocks, asked = finished.blocks, finished.asked
        if asked.own is None:
            store.record(name, blocks, finished.keys.key)
        else:
            store.record(name, blocks[: asked.own_from], finished.keys.key)
            store.record(name, blocks[asked.own_from :], Keys.done(finished.ended).key)

    def _lay(self, finished: Finished, table: CreditTable | None, key: float) -> None:
        name = self._name_of.pop(finished, None)
        if name is not None:  # where a later turn of the conversation has ended since, its key counts
            del self._unanswered[name]
        if table is None:
            return
        self._shadows.lay(finished, table)
        for tier in self.tiers:
            tier.learn_late(finished, table, self._shadows.holding(self.trusting))
        if self._store is not None and name is not None:
            self._store.record(name, finished.blocks, key)

    def trim(self, clock: MonotoneClock) -> None:
        """Now and then, let the store forget what has sunk out of sight."""
        at = time.monotonic()
        if self._store is not None and at - self._trimmed_at >= TRIM_EVERY_S:
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
        """Blocks per request that LRU would have hit more than credit, of the sampled ones; negative: predictions pay."""
        return self._shadows.guard.regret

    @property
    def switches(self) -> int:
        """Changes of the rule in force, as the guard sees it."""
        return self._shadows.guard.switches

    @property
    def shadow_lifetime(self) -> float:
        """Seconds that blocks live in the shadow cache with credit."""
        return self._shadows.lifetime
