"""The engine-independent part of a plug-in: brings an engine's events to the policy (:mod:`eviction_client.policy`).

The engine's scheduler calls :meth:`Plugin.admitted`, :meth:`Plugin.started` and :meth:`Plugin.finished`, which append to a
bounded queue within microseconds. A background thread (:mod:`eviction_client.background`) processes these events in order: the
policy learns from them, and the store is read and written. The scheduler's next :meth:`Plugin.set_rule` passes the tables of
the rule in force to its queue.

A number in the store is a time, so that all engines of a fleet can compare it: the end of a request plus the *retain seconds*
of its class, the first age at which the class's value falls below the price of memory in this cache.
"""

import logging
import math
import time
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Protocol

from eviction_client.background import TICK_S, BackgroundThread, StartBackground
from eviction_client.block_hash import BlockHash
from eviction_client.observability.lru_gain import under_lru
from eviction_client.observability.misses import HitUnit, Misses
from eviction_client.observability.rule_log import RuleLog
from eviction_client.observability.thrash_log import ThrashLog
from eviction_client.operators_file import OperatorsFile
from eviction_client.pace import pause
from eviction_client.policy.ghosts import IN_USE_FOLLOWS
from eviction_client.policy.hints import MAX_RETAIN_S, NO_HINTS, Hints, Owners, Retained
from eviction_client.policy.policy import Policy
from eviction_client.policy.queue.free_queue import DONE, Table
from eviction_client.policy.request import TrackedRequest
from eviction_client.policy.rules import HOMES
from eviction_client.policy.spans import Span, Spans
from eviction_client.policy.tier import ChunkTier
from eviction_client.settings import ClientSettings
from eviction_client.stores.base import BlockStore
from eviction_client.stores.conversations import Conversations
from eviction_client.stores.retain_until import OLDEST_S, done_until
from eviction_client.transport.predictor import Predictor
from lpc.clock import MonotoneClock
from lpc.model.curve import HORIZON_S, retain_seconds
from lpc.wire.bugs import log_bug

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 20_000
"""Events that may wait for the background; beyond it the oldest are dropped."""
MAX_RUNNING: Final = 10_000
"""Started requests that are tracked; beyond it the oldest request's blocks count as used once."""
MAX_ASKED: Final = 256
"""Blocks per query of the store."""
MAX_POOLED: Final = 10_000
"""Cached answers of the store."""
ROUND_S: Final = 1.0
"""Longest time for which one round of the background processes events."""
TRIM_EVERY_S: Final = 100.0
MOST_FAILURES: Final = 3
"""Failures of the background after which LRU applies until the engine restarts."""
NOTICEABLE_S: Final = 1.0
"""A pooled time changes the class only if it is later than the own one by at least this."""


class Ordered(Protocol):
    """A queue that orders blocks by the tables of the rule in force, such as a :class:`FreeQueue`."""

    @property
    def tables(self) -> Sequence[Table] | None:
        """The classes' tables."""

    def set_tables(self, tables: Sequence[Table] | None) -> None:
        """Set the classes' tables; None: least recently used first."""


Event = tuple[Callable[[Any], None], Any]
"""What the background does with it, and the request; of an emptied cache, the time."""


class Plugin:
    """Assigns reuse classes to the blocks of one engine. Call its methods from the scheduler's thread.

    Args:
        capacity: blocks of the engine's cache.
        block_tokens: tokens of a block, as the engine hashes them.
        hits: where the engine's hits end; None: at each block.
        predictor: called at admission; closed with the plug-in.
        store: of the times until which engines retain shared blocks; None: no pooling. Closed with the plug-in.
        clock: seconds since the epoch; None: the system's, see :class:`MonotoneClock`.
        background: starts the learning thread.

    Attributes:
        requests: the started requests by id. Only the scheduler's thread uses it.
        policy: reuse classes, tables, and the rule in force.
        lru_forced: whether the file ``lru_file`` of the settings exists. Then `tables` is None, nothing is kept for waiting
            requests, and they are served first come, first served.
        ended: requests by origin of their group: a prediction, no answer in time, or aborted.
        hinted: finished requests by hint: ``retain``, ``done``, or ``off`` if the settings disable hints.
        retained: blocks of the engine's cache that hints retain; shared with the engine's queue.
        raised: spans in another class because another engine's conversation holds them.
        implausible: answers of the store that are not valid times.
        failures: exceptions hidden from the engine; ``guard_failures``: those of the background's learning.
        seconds: time spent in the scheduler's thread.
        clock: see :meth:`now`.
        on_tick: called about every second, in the background.
        tiers: below the engine's cache.
        misses: sources of prompt tokens.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        capacity: int,
        block_tokens: int,
        hits: HitUnit | None = None,
        predictor: Predictor,
        store: BlockStore | None = None,
        clock: Callable[[], float] | None = None,
        background: StartBackground = BackgroundThread,
    ) -> None:
        self.settings = settings
        self.predictor = predictor
        self.store = store
        self.lru_forced = False
        self._switch = OperatorsFile(settings.lru_file)
        self._obey()
        self.ended = {"prediction": 0, "unanswered": 0, "aborted": 0}
        self.hinted = {"retain": 0, "done": 0, "off": 0}
        self.retained: Retained[Any] = Retained(settings.hints_share * capacity)
        self.raised = self.implausible = self.failures = self.guard_failures = 0
        self.seconds = 0.0
        self.on_tick: list[Callable[[], None]] = []
        self.tiers: list[ChunkTier] = []
        self._owners = Owners(capacity) if settings.hints_share else None
        self._capacity = capacity
        self._block_tokens = block_tokens
        self._in_use = 0.0
        self.clock = MonotoneClock(clock)
        self.requests: OrderedDict[Hashable, TrackedRequest[BlockHash]] = OrderedDict()
        self._events: deque[Event] = deque(maxlen=MAX_WAITING)
        self._appended = self._handled = 0
        self._dropped = False
        """Whether events have been dropped that the background has not noticed."""
        self.policy = self._new_policy()
        self._lru_since = -math.inf
        """Time since which LRU has been in force in the cache and its tiers; infinite: it is not."""
        self._note_order()
        self._rule_log = RuleLog(self.policy.in_force, shadow=settings.shadow)
        self._thrash_log = ThrashLog()
        self._retain_s: Sequence[float] = [0.0] * self.policy.classes
        """By class of the queue."""
        self._by_retain: Sequence[tuple[float, int]] = []
        self._conversations = Conversations()
        self._lately: deque[BlockHash] = deque(maxlen=MAX_ASKED)
        self._pooled: OrderedDict[BlockHash, float] = OrderedDict()
        """Until when others retain blocks. Only the background writes it."""
        self._to_ask = False
        self.misses = Misses(capacity, block_tokens, every=self.policy.ghosts.every, hits=hits)
        self._ticked_at = self._trimmed_at = time.monotonic()
        self._background = background(self._round)

    # The scheduler's thread.

    def admitted(
        self, request_id: Hashable, token_ids: Sequence[int], *, session: str | None, category: str = "", user: str = ""
    ) -> None:
        """Request a prediction.

        Args:
            token_ids: the prompt, which must not change afterwards.
            user: digest of who asks; empty: unknown.
        """
        self.predictor.ask(request_id, token_ids=token_ids, category=category, conversation_id=session or "", user=user)

    def started(
        self, request_id: Hashable, blocks: Sequence[BlockHash], *, kept: bool = False, cached: int | None = None
    ) -> None:
        """Count the reuse of a prompt's blocks: when the request begins to wait if its blocks are retained from then on,
        otherwise when it has allocated them.

        If reuse were counted at the start of the wait without retaining the blocks, they would seem overdue and be evicted just
        before their use. Measured on recorded agents in a closed loop, 96 sessions and 2M tokens: 0.0% of hits instead of 30.9.

        Args:
            blocks: hashes of the prompt's full blocks, which must not change afterwards.
            cached: see :meth:`served`, if the request has already started.
        """
        request: TrackedRequest[BlockHash] = TrackedRequest(request_id, blocks, started_at=self.now(), kept=kept, cached=cached)
        self.requests[request_id] = request
        if len(self.requests) > MAX_RUNNING:
            self._append(self._release, self.requests.popitem(last=False)[1])
        self._append(self._start, request)

    def served(self, request_id: Hashable, cached: int) -> None:
        """Record that the prefill of a `started` request starts. ``cached``: tokens of its prompt in the cache or a tier."""
        request = self.requests.get(request_id)
        if request is not None:
            request.cached = cached
            self._append(self._serve, request)

    def reset(self) -> None:
        """Note that the engine has emptied its cache: the ghost caches are emptied as well.

        What was learned of the requests stays: when blocks are used again depends on the requests, not on the cache.
        """
        self._append(self._empty, self.now())

    def finished(
        self,
        request_id: Hashable,
        *,
        completed: bool,
        blocks: Sequence[BlockHash],
        prompt_blocks: int,
        reply_end: Hashable = None,
        session: str | None = None,
        hints: Hints = NO_HINTS,
        token_ids: Sequence[int] = (),
        prompt_tokens: int | None = None,
        some_layers: int = 0,
        reads_cache: bool = True,
        tenant: str = "",
    ) -> TrackedRequest[BlockHash]:
        """Return a finished request with the reuse classes of its blocks, and its hints.

        If a request ends before it was `started`, its blocks count as used for the first time.

        Args:
            completed: False if it was aborted or failed; its prediction is then ignored.
            blocks: hashes of its computed blocks from the start, which must not change afterwards.
            prompt_blocks: number of these that the prompt filled.
            reply_end: equal for replies with the same end; see `eviction_client.policy.reply_ends`.
            session: digest of the conversation's name, the same in all engines, if known.
            token_ids: the prompt, which must not change afterwards; empty for a prompt of embeddings.
            prompt_tokens: of the prompt; None: as many as ``token_ids``.
            some_layers, reads_cache: see :class:`TrackedRequest`.
            tenant: digest of the cache salt; empty without one.
        """
        now = self.now()
        request = self.requests.pop(request_id, None) or TrackedRequest(request_id)
        request.session, request.tenant = session, tenant
        request.token_ids = token_ids
        request.prompt_tokens = len(token_ids) if prompt_tokens is None else prompt_tokens
        request.some_layers, request.reads_cache = some_layers, reads_cache
        prediction = self.predictor.take(request_id)
        if prediction is None:
            self.predictor.forget(request_id)
        if not completed:
            self.ended["aborted"] += 1
            prediction = reply_end = None
        else:
            self.ended["unanswered" if prediction is None else "prediction"] += 1
        request.retain_s, done_from = self._hinted(hints, session, blocks)
        self.policy.finished(
            request,
            blocks,
            prompt_blocks,
            now,
            group=0 if prediction is None else prediction.group,
            log_odds=None if prediction is None else prediction.log_odds,
            reply_end=reply_end,
            done_from=done_from,
            retain=self._retained_elsewhere if self._pooled else None,
        )
        for tier in self.tiers:
            tier.finished(request, ordered=self.tables is not None)
        self._append(self._finish, request)
        return request

    def lost(self, request_id: Hashable) -> TrackedRequest[BlockHash]:
        """Forget a request whose end could not be read; return a record of its end without blocks. Never raises."""
        self.requests.pop(request_id, None)
        self.predictor.forget(request_id)
        end: TrackedRequest[BlockHash] = TrackedRequest(
            request_id, at=self.clock.latest, newest=self.policy.plain, parts=Spans((Span(0, 0),))
        )
        self._append(self._finish, end)
        return end

    def set_rule(self, queue: Ordered) -> None:
        """Set a queue's tables to those of the rule in force."""
        tables = self.tables
        if queue.tables is not tables:
            queue.set_tables(tables)

    def in_use(self, blocks: int) -> None:
        """Record the number of blocks in use. Called when a request ends."""
        self._in_use += IN_USE_FOLLOWS * (blocks - self._in_use)

    def now(self) -> float:
        """Return the time, seconds since the epoch; monotonic."""
        return self.clock.now()

    def now_or_latest(self) -> float:
        """Return the time, or the latest known time if the clock fails. Never raises."""
        try:
            return self.now()
        except Exception as error:
            self.failed(error)
            return self.clock.latest

    def add_tier(
        self,
        name: str,
        chunks: int,
        *,
        blocks: int,
        prompts_only: bool,
        divided: bool = False,
        named: Callable[[Any], bytes] = bytes,
    ) -> ChunkTier:
        """Add and return a tier below the engine's cache; see :class:`ChunkTier`.

        Args:
            divided: whether the engine's queue evicts the tier's copies early.
        """
        tier = ChunkTier(
            name,
            chunks,
            self.policy,
            blocks=blocks,
            prompts_only=prompts_only,
            pool=self._capacity if divided else 0,
            hints_share=self.settings.hints_share,
            named=named,
            forced=lambda: self.lru_forced,
            clock=self.now,
        )
        self.tiers = [*self.tiers, tier]
        return tier

    def drop_tier(self, tier: ChunkTier) -> None:
        """Remove a tier."""
        self.tiers = [other for other in self.tiers if other is not tier]

    def failed(self, error: Exception) -> None:
        """Count an exception that the engine does not see; log its traceback, without values, once per origin."""
        self.failures += 1
        caught = error.__traceback__
        where = "?" if caught is None else caught.tb_frame.f_code.co_qualname
        log_bug(logger, f"learned prefix cache, {where} (serving goes on)", error)

    def settle(self, timeout: float = 5.0) -> bool:
        """Wait until the background has processed all events; for tests and tools."""
        until = time.monotonic() + timeout
        while self._handled < self._appended and time.monotonic() < until:
            time.sleep(0.005)
        return self._handled >= self._appended

    def close(self) -> None:
        """Close predictor and store, and stop the background."""
        self.predictor.close()
        self._background.close()
        if self.store is not None:
            self.store.close()

    @property
    def rule(self) -> str:
        """The rule in force."""
        return "lru" if self.lru_forced else self.policy.in_force

    @property
    def tables(self) -> Sequence[Table] | None:
        """The tables of the rule in force; None: least recently used first."""
        return None if self.lru_forced else self.policy.tables

    def _append(self, handle: Callable[[Any], None], event: Any) -> None:
        if len(self._events) == MAX_WAITING:
            self._handled += 1  # the oldest is dropped
            self._dropped = True
        self._events.append((handle, event))
        self._appended += 1
        self._background.wake()

    def _retained_elsewhere(self, reuse_class: int, block: BlockHash, now: float) -> int:
        """Return the class of a span: a different one if other conversations retain its deepest block for longer."""
        until = self._pooled.get(block)
        if until is None:
            return reuse_class
        if not now - OLDEST_S <= until <= now + HORIZON_S:  # also false for NaN
            self.implausible += 1
            return reuse_class
        wanted, by_retain = until - now, self._by_retain
        if wanted <= self._retain_s[reuse_class] + NOTICEABLE_S or not by_retain or self.tables is None:
            return reuse_class
        place = bisect_left(by_retain, (wanted, 0))
        raised = min(by_retain[max(place - 1, 0) : place + 1], key=lambda entry: abs(entry[0] - wanted))[1]
        self.raised += raised != reuse_class
        return raised

    def _hinted(self, hints: Hints, session: str | None, blocks: Sequence[BlockHash]) -> tuple[float, int]:
        """Return the seconds for which hints retain a request's blocks, and the depth from which its blocks are done."""
        if self._owners is None:
            self.hinted["off"] += hints is not NO_HINTS
            return 0.0, len(blocks)
        own_from = self._owners.own_from(session, blocks) if hints.done else len(blocks)
        self._owners.used(session, blocks)
        if hints.done:
            self.hinted["done"] += 1
            return 0.0, own_from
        if hints.retain_s:
            self.hinted["retain"] += 1
            return min(hints.retain_s, MAX_RETAIN_S), len(blocks)
        return 0.0, len(blocks)

    # The background.

    def _round(self) -> None:
        """Run one round of learning.

        If the guard fails, its last choice must not stay in force, so the order becomes LRU.
        """
        try:
            if self.guard_failures < MOST_FAILURES:
                self._learn()
            else:
                self._events.clear()
                self._handled = self._appended
        except Exception as error:
            self._distrust()
            self.failed(error)
        try:
            self._pool()
            at = time.monotonic()
            if at - self._ticked_at >= TICK_S:
                self._ticked_at = at
                self._obey()
                self._note_order()
                for callback in self.on_tick:
                    callback()
            if self.store is not None and at - self._trimmed_at >= TRIM_EVERY_S:
                self._trimmed_at = at
                self.store.trim(self.now())
        except Exception as error:
            self.failed(error)

    def _obey(self) -> None:
        """Switch to the engine's own order while the operator's file exists, and back."""
        forced = self._switch.on()
        if forced != self.lru_forced:
            self.lru_forced = forced
            what = "exists: the order is LRU" if forced else "is gone: the guard chooses the order again"
            logger.warning("learned prefix cache: the file %s %s", self.settings.lru_file, what)

    def _learn(self) -> None:
        """Process events for at most about ROUND_S, so that the operator's file and the store are looked at under any load."""
        curves = self.predictor.reuse_curves
        if curves is not None:
            self.policy.set_sidecar_curves(curves.epoch, curves.hazards)
        until = time.monotonic() + ROUND_S
        self._release_if_dropped()
        while self._events and time.monotonic() < until:
            handle, event = self._events.popleft()
            try:
                handle(event)
            finally:
                self._handled += 1
            self._release_if_dropped()
            pause()
        self._explain(self._rule_log.update, self.policy.ghosts, time.monotonic())
        self._explain(self._thrash_log.update, self.misses.repeated_prefill.share, time.monotonic())
        now = self.now()
        if self.policy.refit_due(now):
            self._refit(now)

    def _start(self, request: TrackedRequest[BlockHash]) -> None:
        self.policy.started(request)
        if request.kept:
            above = self.policy.ghosts.caches[self.rule]
            for tier in self.tiers:
                tier.ghosts.wait(request.request_id, request.prompt, above=above)
            self.policy.ghosts.wait(request.request_id, request.prompt)
        else:
            self.policy.ghosts.start(request.request_id, request.prompt)
            self._explain(self._compare, request)
        if self.store is not None:
            self._lately.extend(request.prompt[span.end - 1] for span in request.gap_spans)
            if request.new_blocks:  # another engine may know the first unknown block
                self._lately.append(request.prompt[request.old])
            self._to_ask = True

    def _serve(self, request: TrackedRequest[BlockHash]) -> None:
        if request.kept and request.conversation is not None:
            self._explain(self._compare, request)

    def _empty(self, at: float) -> None:
        self.policy.ghosts.clear()
        self.misses.reset(at)

    def _compare(self, request: TrackedRequest[BlockHash]) -> None:
        """Look up what LRU would hold of a prompt that the engine looks up now."""
        request.under_lru = under_lru(
            request,
            pool=self.policy.ghosts,
            tiers=[tier.ghosts for tier in self.tiers],
            since=self._lru_since,
            reset_at=self.misses.reset_at,
        )

    def _note_order(self) -> None:
        """Note since when LRU has been in force."""
        others = () if self.settings.shadow or self.lru_forced else (self.policy.in_force, *(tier.rule for tier in self.tiers))
        if any(rule != "lru" for rule in others):
            self._lru_since = math.inf
        elif self._lru_since == math.inf:
            self._lru_since = self.now()

    def _finish(self, request: TrackedRequest[BlockHash]) -> None:
        if self._owners is not None:
            self._owners.record()
        ghosts = self.policy.ghosts
        self._explain(
            self.misses.finished,
            request,
            ghosts=ghosts.caches,
            elsewhere=self._pooled,
            in_use=self._in_use,
        )
        above = ghosts.caches[self.rule]
        for tier in self.tiers:  # first, while the ghost caches of the pool have not seen this request
            tier.learn(request, above)
        self.policy.learn(request)
        self._explain(self.misses.judge, request.tenant, ghosts.latest_asked, ghosts.latest)
        self._release(request)
        self._note_order()
        if self.store is not None and request.blocks:
            name = self._conversations.name(request.session, request.blocks)
            for start, end, reuse_class, _, _ in request.spans:
                until = done_until(request.at) if reuse_class == DONE else request.at + self._retain_s[reuse_class]
                self.store.record(name, request.blocks[start:end], until)

    def _release(self, request: TrackedRequest[BlockHash]) -> None:
        """Release what the ghost caches retain for a request."""
        for ghosts in (self.policy.ghosts, *(tier.ghosts for tier in self.tiers)):
            ghosts.release(request.request_id)

    def _release_if_dropped(self) -> None:
        """Release what the ghost caches retain for all requests if events were dropped: the ends of some will not come."""
        if self._dropped:
            self._dropped = False
            for ghosts in (self.policy.ghosts, *(tier.ghosts for tier in self.tiers)):
                ghosts.release_all()

    def _explain(self, explain: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Count misses, or log the rule. A failure does not stop the guard."""
        try:
            explain(*args, **kwargs)
        except Exception as error:
            self.failed(error)

    def _refit(self, now: float) -> None:
        policy = self.policy
        policy.ghosts.resize(self._capacity, in_use=self._in_use)
        for _ in policy.refitting(now):
            pause()
        for tier in self.tiers:
            tier.refitted()
        tables = policy.tables or policy.tables_of(HOMES[0])
        if tables is not None:
            price = policy.price
            retain_s = [min(retain_seconds(tables[-1], price), HORIZON_S)] * policy.classes
            for number in range(policy.known_classes):
                retain_s[number] = min(retain_seconds(tables[number], price), HORIZON_S)
                pause()
            self._by_retain = sorted((seconds, number) for number, seconds in enumerate(retain_s[: policy.known_classes]))
            self._retain_s = retain_s

    def _pool(self) -> None:
        """Write recorded times to the store, and query it for the deepest blocks of new gap spans."""
        store = self.store
        if store is None:
            return
        if self._to_ask:
            self._to_ask = False
            self._pooled.update(store.shared(list(dict.fromkeys(self._lately))))
            while len(self._pooled) > MAX_POOLED:
                self._pooled.popitem(last=False)
        else:
            store.flush()

    def _distrust(self) -> None:
        """After a failure switch to LRU and discard what was learned, the guard's evidence too.

        LRU stays in force under a fixed rule, for which no guard would collect new evidence, and after MOST_FAILURES.
        """
        self.guard_failures += 1
        self.policy = self.policy.renewed()
        for tier in self.tiers:
            tier.distrust(self.policy)
        self._note_order()

    def _new_policy(self) -> Policy[BlockHash]:
        return Policy(self._capacity, block_tokens=self._block_tokens, clock=self.now, rule=self.settings.rule)
