"""From a request's admission to the score of its blocks: the part of a plug-in that is the same in every engine.

The engine's scheduler calls :meth:`Scorer.admitted` and :meth:`Scorer.finished`, which touch dictionaries and append to a
bounded queue: microseconds. What costs more (shadow caches, stores, metrics) is done by one background thread.
"""

import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from eviction_client.predictor_client import Prediction, PredictorCounters
from eviction_client.score import score
from eviction_client.settings import ClientSettings
from eviction_client.shadow import ShadowCounters, Shadows
from eviction_client.stores.base import BlockHash, ConversationId, MetadataStore
from lpc.model.probability import P_MIN

logger = logging.getLogger(__name__)

GATHER_S: Final = 0.02
"""Pause in which finished requests gather; also how long an answer of the store may lie before it is seen."""
TICK_S: Final = 1.0
"""How often metrics are written."""
LOOK_AHEAD_S: Final = 0.05
"""Shortest time between two questions to the store."""
MAX_WAITING: Final = 10_000
"""Finished requests that may wait for the background thread; over it the oldest are not learnt from."""
MAX_ENDS: Final = 200_000
"""Conversations remembered by their last block."""
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


@dataclass(frozen=True, slots=True)
class Hints:
    """What an application knows better than any predictor, per request.

    Attributes:
        retain_s: rank the blocks as if they had been used this many seconds later (negative: earlier).
        done: the conversation or branch is over.
        priority: added to the score as it is, log-odds.
    """

    retain_s: float = 0.0
    done: bool = False
    priority: float = 0.0

    @classmethod
    def of(cls, arguments: Mapping[str, Any] | None) -> "Hints":
        """Read ``lpc_retain_seconds``, ``lpc_done`` and ``lpc_priority``; what cannot be understood is no hint."""
        if not arguments:
            return NO_HINTS
        done = arguments.get("lpc_done", False)
        hints = cls(
            _number(arguments.get("lpc_retain_seconds")),
            done.strip().lower() in ("1", "true", "yes") if isinstance(done, str) else bool(done),
            _number(arguments.get("lpc_priority")),
        )
        return NO_HINTS if hints == NO_HINTS else hints


NO_HINTS: Final = Hints()


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return number if math.isfinite(number) else 0.0


@dataclass(frozen=True, slots=True)
class _Finished:
    session: str | None
    blocks: Sequence[BlockHash]
    prompt_blocks: int
    trusting: float
    lru: float
    score: float


class Scorer:
    """Scores the requests of one engine. Its methods belong to the scheduler's thread, but for ``on_tick``'s callbacks.

    Args:
        capacity: blocks of the engine's cache.
        predictor: asked at admission; closed with the scorer.
        store: where shared blocks keep the scores of others; None where scores are not pooled. Closed with the scorer.
        clock: seconds since the epoch, the same in all engines of a fleet. Where it steps back, time stands still.

    Attributes:
        beta: how far predictions are trusted at present.
        scored: finished requests by what their score came from.
        failures: exceptions kept from the engine.
        seconds: time spent in the scheduler's thread.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        capacity: int,
        predictor: Predictor,
        store: MetadataStore | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.predictor = predictor
        self.store = store
        self.beta = 1.0
        self.scored = {"prediction": 0, "prior": 0, "aborted": 0, "done": 0}
        self.failures = 0
        self.seconds = 0.0
        self.on_tick: list[Callable[[], None]] = []
        self._clock = clock
        self._latest = -math.inf
        self._shadows = Shadows(capacity)
        self._waiting: deque[_Finished] = deque(maxlen=MAX_WAITING)
        self._ends: OrderedDict[BlockHash, ConversationId] = OrderedDict()
        self._question: Sequence[BlockHash] | None = None
        self._asked_at = -math.inf
        self._expecting = 0
        self._raises: dict[BlockHash, float] = {}
        self._wake = threading.Event()
        self._taken_in = self._learnt = 0
        self._closing = False
        self._told_failure = False
        self._thread = threading.Thread(target=self._run, name="lpc-scorer", daemon=True)
        self._thread.start()

    def now(self) -> float:
        """Seconds since the epoch; never goes back, since the order of a constant prior would no longer be LRU."""
        t = self._clock()
        if t > self._latest:
            self._latest = t
        return self._latest

    def admitted(self, request_id: Hashable, token_ids: Sequence[int], *, session: str | None, category: str = "") -> None:
        """Ask the predictor about a request. ``token_ids`` must not change afterwards."""
        self.predictor.ask(request_id, token_ids=token_ids, category=category, conversation_id=session or "")

    def prior_score(self) -> float:
        """Return the score of blocks of which nothing is known, used now."""
        return score(self.settings.prior, self.now(), self.settings.tau_s, beta=self.beta)

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
        now = self.now()
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
            # The application's word is no prediction: beta has no say in it.
            value, source = score(P_MIN, now, tau), "done"
        elif hints is NO_HINTS and self.beta == 1.0:
            value = trusting
        else:
            retain = hints.retain_s + min(max(hints.priority, -MAX_PRIORITY), MAX_PRIORITY) * tau
            longest = settings.max_retain_s
            value = score(p, now, tau, beta=self.beta, retain_s=min(max(retain, -longest), longest))
        self.scored[source] += 1
        self._waiting.append(_Finished(session, blocks, prompt_blocks, trusting, now / tau, value))
        self._taken_in += 1
        if not self._wake.is_set():
            self._wake.set()
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
            self._question = candidates()
            if not self._wake.is_set():
                self._wake.set()
        raises = self._raises
        if raises:
            self._raises = {}
        return raises

    def ceiling(self) -> float:
        """Return the highest score that this engine could give now: what others say beyond it has another clock or tau."""
        return score(1.0, self.now(), self.settings.tau_s, retain_s=self.settings.max_retain_s)

    def failed(self, error: Exception) -> None:
        """Count an exception that was kept from the engine; log the first."""
        self.failures += 1
        if not self._told_failure:
            self._told_failure = True
            # The type and place only: a message might quote a request.
            place = error.__traceback__
            while place is not None and place.tb_next is not None:
                place = place.tb_next
            where = f"{place.tb_frame.f_code.co_qualname}:{place.tb_lineno}" if place is not None else "?"
            logger.error("learned prefix cache: %s at %s; serving goes on without it", type(error).__name__, where)

    @property
    def even(self) -> float:
        """The score of log-odds 0 at the latest time seen."""
        return self._latest / self.settings.tau_s

    @property
    def shadow_counters(self) -> ShadowCounters:
        """What the shadow caches have hit."""
        return self._shadows.counters

    @property
    def regret(self) -> float:
        """Blocks per request that LRU would have hit more than full trust, of the sampled ones; negative: predictions pay."""
        return self._shadows.guard.regret

    def settle(self, timeout: float = 5.0) -> bool:
        """Wait until everything finished so far has been learnt from; for tests and tools."""
        until = time.monotonic() + timeout
        while self._learnt < self._taken_in and time.monotonic() < until:
            time.sleep(0.005)
        return self._learnt >= self._taken_in

    def close(self) -> None:
        """Let go of predictor, store and thread."""
        self._closing = True
        self._wake.set()
        self.predictor.close()
        if self.store is not None:
            self.store.close(0.5)
        self._thread.join(1.0)

    # Below: the background thread.

    def _run(self) -> None:
        ticked = trimmed = time.monotonic()
        while not self._closing:
            self._wake.wait(GATHER_S if self._expecting else TICK_S)
            time.sleep(GATHER_S)
            self._wake.clear()
            try:
                self._learn()
                now = time.monotonic()
                if now - ticked >= TICK_S:
                    ticked = now
                    for callback in self.on_tick:
                        callback()
                if self.store is not None and now - trimmed >= self.settings.tau_s:
                    trimmed = now
                    self.store.trim(self.now())
            except Exception as error:
                self.failed(error)

    def _learn(self) -> None:
        while self._waiting:
            finished = self._waiting.popleft()
            beta = self._shadows.observe(finished.blocks, finished.prompt_blocks, finished.trusting, finished.lru)
            if self.settings.guard:
                self.beta = beta
            if self.store is not None and finished.blocks:
                self.store.record(self._conversation(finished), finished.blocks, finished.score)
            self._learnt += 1
            # Offer the GIL to the scheduler's thread, which would else wait for the interpreter's switch interval, 5 ms.
            time.sleep(0)
        store = self.store
        if store is not None:
            question, self._question = self._question, None
            if question:
                store.look_ahead(question)
                self._expecting = 50
            if self._expecting:
                # Answers of a store that is away may never come.
                self._expecting -= 1
                answers = store.raises()
                if answers:
                    self._raises, self._expecting = answers, 0

    def _conversation(self, finished: _Finished) -> ConversationId:
        """Name the conversation of a request: by its session, else by the earlier chain that its own continues."""
        if finished.session:
            return ConversationId(finished.session)
        ends = self._ends
        blocks = finished.blocks
        name = None
        for block in reversed(blocks):
            name = ends.pop(block, None)
            if name is not None:
                break
        if name is None:
            name = ConversationId(blocks[-1].hex())
        ends[blocks[-1]] = name
        if len(ends) > MAX_ENDS:
            ends.popitem(last=False)
        return name
