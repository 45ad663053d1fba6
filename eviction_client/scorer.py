"""From a request's admission to the score of its blocks: the part of a plug-in that is the same in every engine.

The engine's scheduler calls :meth:`Scorer.admitted` and :meth:`Scorer.finished`, which touch dictionaries and append to a
bounded queue: microseconds. What costs more (shadow caches, stores, metrics) is done in the background
(:mod:`eviction_client.background`) by :mod:`eviction_client.learner`.
"""

import logging
import math
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Protocol

from eviction_client.background import TICK_S, BackgroundThread, StartBackground
from eviction_client.book import PredictorCounters
from eviction_client.clock import MonotoneClock
from eviction_client.hints import NO_HINTS, Hints
from eviction_client.learner import Finished, Learner
from eviction_client.messages import Prediction
from eviction_client.score import score
from eviction_client.settings import ClientSettings
from eviction_client.shadow import ShadowCounters
from eviction_client.stores.base import BlockHash, MetadataStore
from lpc.model.probability import P_MIN

logger = logging.getLogger(__name__)

LOOK_AHEAD_S: Final = 0.05
"""Shortest time between two questions to the store."""
MAX_PRIORITY: Final = 20.0
"""Log-odds: more than lies between the highest and the lowest probability."""


class Predictor(Protocol):
    """What :class:`eviction_client.predictor_client.PredictorClient` does. Never blocks, never raises."""

    def ask(self, request_id: Hashable, *, token_ids: Sequence[int], category: str = "", conversation_id: str = "") -> None:
        """Ask whether a conversation continues."""

    def take(self, request_id: Hashable) -> Prediction | None:
        """Return the answer, if it is there."""

    def forget(self, request_id: Hashable) -> None:
        """Forget a request."""

    def close(self) -> None:
        """Hang up."""

    @property
    def healthy(self) -> bool:
        """Whether the sidecar can be reached."""

    @property
    def counters(self) -> PredictorCounters:
        """A snapshot."""


class Scorer:
    """Scores the requests of one engine. Its methods belong to the scheduler's thread, but for ``on_tick``'s callbacks.

    Args:
        capacity: blocks of the engine's cache.
        predictor: asked at admission; closed with the scorer.
        store: where shared blocks keep the scores of others; None where scores are not pooled. Closed with the scorer.
        clock: seconds since the epoch, the same in all engines of a fleet. Where it steps back, time stands still.
        background: starts what runs the rounds of learning.

    Attributes:
        scored: finished requests by what their score came from.
        failures: exceptions kept from the engine.
        seconds: time spent in the scheduler's thread.
        on_tick: called about every second, in the background.
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
        self.scored = {"prediction": 0, "prior": 0, "aborted": 0, "done": 0}
        self.failures = 0
        self.seconds = 0.0
        self.on_tick: list[Callable[[], None]] = []
        self._clock = MonotoneClock(clock)
        self._learner = Learner(settings, capacity=capacity, store=store)
        self._asked_at = -math.inf
        self._ticked_at = time.monotonic()
        self._background = background(self._round)

    def admitted(self, request_id: Hashable, token_ids: Sequence[int], *, session: str | None, category: str = "") -> None:
        """Ask the predictor about a request. ``token_ids`` must not change afterwards."""
        self.predictor.ask(request_id, token_ids=token_ids, category=category, conversation_id=session or "")

    def prior_score(self) -> float:
        """Return the score of blocks of which nothing is known, used now."""
        return score(self.settings.prior, self._clock.now(), self.settings.tau_s, beta=self.beta)

    def finished(
        self,
        request_id: Hashable,
        *,
        completed: bool,
        blocks: Sequence[BlockHash],
        prompt_blocks: int,
        session: str | None = None,
        hints: Hints = NO_HINTS,
    ) -> float:
        """Return the score of a request that has ended.

        Args:
            completed: it came to its end; else (aborted, failed) its prediction counts for nothing.
            blocks: hashes of its chain from the start, as far as computed. Must not change afterwards.
            prompt_blocks: how many of these its prompt filled.
            session: names the conversation in all engines, where the caller knows.
        """
        settings = self.settings
        tau = settings.tau_s
        now = self._clock.now()
        beta = self.beta
        prediction = self.predictor.take(request_id)
        if prediction is None:
            self.predictor.forget(request_id)
        if prediction is not None and completed:
            p = prediction.probability
            source = "prediction"
        else:
            p = settings.prior
            source = "prior" if completed else "aborted"
        trusting = score(p, now, tau)
        if hints.done:
            # The application's word is not a prediction: beta has no say in it.
            value, source = score(P_MIN, now, tau), "done"
        elif hints is NO_HINTS and beta == 1.0:
            value = trusting
        else:
            retain = hints.retain_s + min(max(hints.priority, -MAX_PRIORITY), MAX_PRIORITY) * tau
            longest = settings.max_retain_s
            value = score(p, now, tau, beta=beta, retain_s=min(max(retain, -longest), longest))
        self.scored[source] += 1
        self._learner.take_in(Finished(session, blocks, prompt_blocks, trusting, now / tau, value))
        self._background.wake()
        return value

    def look_ahead(self, candidates: Callable[[], Sequence[BlockHash]]) -> dict[BlockHash, float]:
        """Ask the store for the scores of the blocks to be evicted next; return the answers that have come meanwhile.

        Args:
            candidates: called only where it is time to ask.
        """
        if self.store is None:
            return {}
        now = time.monotonic()
        if now - self._asked_at >= LOOK_AHEAD_S:
            self._asked_at = now
            self._learner.ask(candidates())
            self._background.wake()
        return self._learner.take_answers()

    def ceiling(self) -> float:
        """Return the highest score that this engine could give now: what others say beyond it has another clock or tau."""
        return score(1.0, self._clock.now(), self.settings.tau_s, retain_s=self.settings.max_retain_s)

    def failed(self, error: Exception) -> None:
        """Count an exception that was kept from the engine; log the first."""
        self.failures += 1
        if self.failures == 1:
            # The type and place only: a message might quote a request.
            place = error.__traceback__
            while place is not None and place.tb_next is not None:
                place = place.tb_next
            where = f"{place.tb_frame.f_code.co_qualname}:{place.tb_lineno}" if place is not None else "?"
            logger.error("learned prefix cache: %s at %s; serving goes on without it", type(error).__name__, where)

    @property
    def beta(self) -> float:
        """How far predictions are trusted at present: 1 in full, at 0 the order is LRU."""
        return self._learner.beta

    @property
    def even(self) -> float:
        """The score of log-odds 0 at the latest time seen."""
        return self._clock.latest / self.settings.tau_s

    @property
    def shadow_counters(self) -> ShadowCounters:
        """What the shadow caches have hit."""
        return self._learner.shadow_counters

    @property
    def regret(self) -> float:
        """Blocks per request that LRU would have hit more than full trust, of the sampled ones; negative: predictions pay."""
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
        """One round in the background; returns whether the next is due soon."""
        try:
            due = self._learner.learn()
            now = time.monotonic()
            if now - self._ticked_at >= TICK_S:
                self._ticked_at = now
                for callback in self.on_tick:
                    callback()
            self._learner.trim(self._clock)
        except Exception as error:
            self.failed(error)
            return False
        return due
