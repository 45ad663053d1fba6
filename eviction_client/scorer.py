"""From a request's admission to the keys of its blocks: the part of a plug-in that is the same in every engine.

The engine's scheduler calls :meth:`Scorer.admitted`, :meth:`Scorer.finished` and :meth:`Scorer.late`, which touch dictionaries
and append to a bounded queue: microseconds. What costs more (shadow caches, stores, metrics) is done in the background
(:mod:`eviction_client.background`) by :mod:`eviction_client.learner`.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Protocol

from eviction_client.background import TICK_S, BackgroundThread, StartBackground
from eviction_client.clock import MonotoneClock
from eviction_client.credit import Above, Lifetime
from eviction_client.finished import Finished
from eviction_client.hints import NO_HINTS, NOTHING, Asked, Hints, Owners, Retained
from eviction_client.learner import Learner
from eviction_client.messages import Prediction
from eviction_client.predictor import BasePredictor
from eviction_client.score import OLDEST_S, Keys
from eviction_client.settings import ClientSettings
from eviction_client.shadow import ShadowCounters
from eviction_client.stores.base import BlockHash, MetadataStore
from eviction_client.tier import Tier
from lpc.model.returns import MAX_CREDIT_S
from lpc.wire.bugs import log_bug

logger = logging.getLogger(__name__)

LOOK_AHEAD_S: Final = 0.05
"""Shortest time between two questions to the store."""
CREDITS_REMEMBERED: Final = 1024
"""Latest credits given, of which metrics show the quantiles."""


class Predictor(BasePredictor, Protocol):
    """A predictor whose answers may come after the end of their request."""

    def take_or_leave(self, request_id: Hashable) -> tuple[Prediction | None, bool]:
        """Return the answer of a request that has ended; without one, whether it may still come."""

    def late_answers(self) -> Sequence[tuple[Hashable, Prediction | None]]:
        """Return what has become of requests that were left: their answers; None for each that gets none."""


class Scorer:
    """Gives the requests of one engine their keys. Methods are for the scheduler's thread, but for ``on_tick``'s callbacks.

    Args:
        capacity: blocks of the engine's cache.
        predictor: asked at admission; closed with the scorer.
        store: where shared blocks keep the keys of others; None where keys are not pooled. Closed with the scorer.
        clock: seconds since the epoch, the same in all engines of a fleet. Where it steps back, time stands still.
        background: starts what runs the rounds of learning.

    Attributes:
        scored: finished requests by what their keys came from; ``late`` ones are among the ``unanswered``, too.
        lifetime: of the engine's cache. The queue that evicts from it is given this one to learn.
        credits: the latest credits given, seconds.
        hinted: finished requests with hints: ``retain``, ``done``, and ``off``, which the settings do not allow.
        retained: blocks of the engine's cache that hints retain. The queue that evicts from it is given this account.
        owners: whose blocks a request's ``done`` may touch; None in an engine where the order itself sees to it.
        implausible: keys that the store has answered with and that cannot be any.
        failures: exceptions kept from the engine.
        seconds: time spent in the scheduler's thread.
        on_tick: called about every second, in the background.
        tiers: below the engine's cache, each given the same credit at a lifetime of its own.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        capacity: int,
        predictor: Predictor,
        store: MetadataStore | None = None,
        clock: Callable[[], float] = time.time,
        background: StartBackground = BackgroundThread,
    ) -> None:
        self.settings = settings
        self.predictor = predictor
        self.store = store
        self.scored = {"prediction": 0, "unanswered": 0, "late": 0, "aborted": 0, "done": 0}
        self.lifetime = Lifetime(capacity)
        self.credits: deque[float] = deque(maxlen=CREDITS_REMEMBERED)
        self.hinted = {"retain": 0, "done": 0, "off": 0}
        self.retained: Retained[Any] = Retained(settings.hints_share * capacity)
        self.owners = Owners(capacity) if settings.hints else None
        self.implausible = 0
        self.failures = 0
        self.seconds = 0.0
        self.on_tick: list[Callable[[], None]] = []
        self.tiers: list[Tier] = []
        self._clock = MonotoneClock(clock)
        self._learner = Learner(settings, capacity=capacity, store=store)
        self._awaited: dict[Hashable, Finished] = {}
        self._asked_at = -math.inf
        self._ticked_at = time.monotonic()
        self._background = background(self._round)

    def admitted(self, request_id: Hashable, token_ids: Sequence[int], *, session: str | None, category: str = "") -> None:
        """Ask the predictor about a request. ``token_ids`` must not change afterwards."""
        self.predictor.ask(request_id, token_ids=token_ids, category=category, conversation_id=session or "")

    def add_tier(
        self, name: str, chunks: int, *, blocks: int, prompts_only: bool, named: Callable[[Any], bytes] = bytes
    ) -> Tier:
        """Return a tier below the engine's cache that gets the same requests' credit; see :class:`Tier`."""
        tier = Tier(
            name,
            chunks,
            blocks=blocks,
            prompts_only=prompts_only,
            guarded=self.settings.guard,
            pools=self.settings.pools != "off",
            hints_share=self.settings.hints_share,
            named=named,
            above=lambda: Above(self.lifetime.seconds, self.trusting, self.lifetime.capacity / max(blocks, 1)),
            clock=self.now,
        )
        self.tiers.append(tier)
        self._learner.tiers.append(tier)
        return tier

    def drop_tier(self, tier: Tier) -> None:
        """Have nothing more to do with a tier."""
        self.tiers = [other for other in self.tiers if other is not tier]
        self._learner.tiers = [other for other in self._learner.tiers if other is not tier]

    def now(self) -> float:
        """Return the time, seconds since the epoch. It never goes back."""
        return self._clock.now()

    def finished(
        self,
        request_id: Hashable,
        *,
        completed: bool,
        blocks: Sequence[BlockHash],
        prompt_blocks: int,
        session: str | None = None,
        hints: Hints = NO_HINTS,
    ) -> Finished:
        """Return the keys of the blocks of a request that has ended, and what its hints ask for.

        Args:
            completed: it came to its end; else (aborted, failed) its prediction counts for nothing.
            blocks: hashes of its chain from the start, as far as computed. Must not change afterwards.
            prompt_blocks: how many of these its prompt filled.
            session: names the conversation in all engines, where the caller knows.
        """
        now = self._clock.now()
        asked = self._asked(hints, session, blocks)
        done = asked.own is not None
        awaited = False
        if completed and not done:
            prediction, awaited = self.predictor.take_or_leave(request_id)
        else:
            prediction = self.predictor.take(request_id)
        if prediction is None and not awaited:
            self.predictor.forget(request_id)
        table = None if prediction is None or not completed else prediction.credit
        keys = Keys(now, now)
        if table is not None:
            credit = table.at(self.lifetime.seconds)
            keys = Keys(now, now + credit)
            self.credits.append(credit)
        source = "done" if done else "aborted" if not completed else "unanswered" if prediction is None else "prediction"
        self.scored[source] += 1
        finished = Finished(session, blocks, prompt_blocks, now, keys, table, awaited, asked)
        if awaited:
            self._awaited[request_id] = finished
        for tier in self.tiers:
            tier.ended(request_id, finished)
        self._learner.take_in(finished)
        self._background.wake()
        return finished

    def _asked(self, hints: Hints, session: str | None, blocks: Sequence[BlockHash]) -> Asked:
        """Return what a request's hints ask for, within the settings; note that it has used its blocks."""
        if not self.settings.hints:
            self.hinted["off"] += hints is not NO_HINTS
            return NOTHING
        own_from = 0 if self.owners is None else self.owners.used(session, blocks)
        if hints.done:
            self.hinted["done"] += 1
            return Asked(own=frozenset(() if self.owners is None else blocks[own_from:]), own_from=own_from)
        if hints.retain_s:
            self.hinted["retain"] += 1
            return Asked(min(hints.retain_s, self.settings.max_retain_s))
        return NOTHING

    def awaits(self, request_id: Hashable) -> bool:
        """Return whether a request has ended whose answer may still come."""
        return request_id in self._awaited

    def late(self) -> list[tuple[Hashable, Keys | None]]:
        """Return the keys of requests whose answer has come after their end; None for each whose answer never will."""
        answers = self.predictor.late_answers()
        if not answers:
            return []
        keys_of: list[tuple[Hashable, Keys | None]] = []
        for request_id, prediction in answers:
            finished = self._awaited.pop(request_id, None)
            if finished is None:
                continue
            keys = None
            table = None if prediction is None else prediction.credit
            for tier in self.tiers:
                tier.late(request_id, table)
            self.scored["late"] += prediction is not None
            if table is not None:
                keys = finished.keys_at(self.lifetime.seconds, table)
                self.credits.append(keys.key - keys.t_last)
            self._learner.take_in(finished, (table, finished.keys.key if keys is None else keys.key))
            keys_of.append((request_id, keys))
        self._background.wake()
        return keys_of

    def look_ahead(self, candidates: Callable[[], Sequence[BlockHash]]) -> dict[BlockHash, float]:
        """Ask the store for the keys of the blocks to be evicted next; return the answers that have come meanwhile.

        While least recent use is in force nothing is asked: what other conversations are predicted to do has no say then.

        Args:
            candidates: called only where it is time to ask.
        """
        if self.store is None or not self.trusting:
            return {}
        now = time.monotonic()
        if now - self._asked_at >= LOOK_AHEAD_S:
            self._asked_at = now
            self._learner.ask(candidates())
            self._background.wake()
        answers = self._learner.take_answers()
        if not answers:
            return {}
        oldest, ceiling = self._clock.now() - OLDEST_S, self.ceiling()
        plausible = {block: key for block, key in answers.items() if oldest <= key <= ceiling}  # NaN is not, either
        self.implausible += len(answers) - len(plausible)
        return plausible

    def ceiling(self) -> float:
        """Return the highest key that this engine could give now: what others say beyond it has another clock."""
        return self._clock.now() + MAX_CREDIT_S

    def failed(self, error: Exception) -> None:
        """Count an exception that was kept from the engine; log its frames, without values, once for what caught it."""
        self.failures += 1
        caught = error.__traceback__
        where = "?" if caught is None else caught.tb_frame.f_code.co_qualname
        log_bug(logger, f"learned prefix cache, {where} (serving goes on)", error)

    @property
    def trusting(self) -> bool:
        """Whether credit is in force; else the order is least recent use."""
        return self._learner.trusting

    @property
    def guard_failures(self) -> int:
        """Rounds of learning that have failed, after each of which the order is least recent use."""
        return self._learner.failures

    @property
    def switches(self) -> int:
        """How often the guard has changed the rule, or, where it has no say, would have."""
        return self._learner.switches

    @property
    def shadow_lifetime(self) -> float:
        """Seconds that blocks of average conversations live in the shadow cache with credit."""
        return self._learner.shadow_lifetime

    @property
    def shadow_counters(self) -> ShadowCounters:
        """What the shadow caches have hit."""
        return self._learner.shadow_counters

    @property
    def regret(self) -> float:
        """Blocks per request that LRU would have hit more than credit, of the sampled ones; negative: predictions pay."""
        return self._learner.regret

    def settle(self, timeout: float = 5.0) -> bool:
        """Wait until everything finished so far has been learnt from; for tests and tools."""
        until = time.monotonic() + timeout
        while not self._learner.settled and time.monotonic() < until:
            time.sleep(0.005)
        return self._learner.settled

    def close(self) -> None:
        """Let go of predictor, store and background."""
        self.predictor.close()
        if self.store is not None:
            self.store.close(0.5)
        self._background.close()

    def _round(self) -> bool:
        """One round in the background; returns whether the next is due soon.

        If the guard cannot judge, the rule that it last chose must not stay in force: the order is least recent use.
        """
        due = False
        try:
            due = self._learner.learn()
        except Exception as error:
            self._learner.distrust()
            self.failed(error)
        try:
            now = time.monotonic()
            if now - self._ticked_at >= TICK_S:
                self._ticked_at = now
                for callback in self.on_tick:
                    callback()
            self._learner.trim(self._clock)
        except Exception as error:
            self.failed(error)
        return due
