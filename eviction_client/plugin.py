"""The engine-independent part of a plug-in: from a request's admission to the reuse classes of its blocks.

The engine's scheduler calls :meth:`Plugin.admitted`, :meth:`Plugin.started` and :meth:`Plugin.finished`, which append to a
bounded queue within microseconds. A background thread (:mod:`eviction_client.background`) processes these events in order: it
counts reuse, lets the ghost caches choose the rule, fits the curves, and reads and writes the store. The scheduler's next
:meth:`Plugin.follow` passes rule and values to its queue.

A key in the store is a time, so that all engines of a fleet can compare it: the end of a request plus the *retain seconds* of
its class, the first age at which the class's value falls below the price of memory in this cache.
"""

import logging
import math
import time
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from eviction_client.background import TICK_S, BackgroundThread, StartBackground
from eviction_client.observability.misses import Misses
from eviction_client.operators_file import OperatorsFile
from eviction_client.pace import pause
from eviction_client.policy import grouping
from eviction_client.policy.finished_request import ClassSpan, FinishedRequest
from eviction_client.policy.free_queue import DONE, Table
from eviction_client.policy.ghosts import Freed, Ghosts, sampled
from eviction_client.policy.hints import MAX_RETAIN_S, NO_HINTS, Hints, Owners, Retained
from eviction_client.policy.reuse_monitor import KINDS, GapSpan, ReuseMonitor, first_class
from eviction_client.policy.tier import Tier
from eviction_client.settings import ClientSettings
from eviction_client.stores.base import BlockHash, BlockStore
from eviction_client.stores.conversations import Conversations
from eviction_client.stores.retain_until import OLDEST_S, done_key
from eviction_client.transport.predictor import Predictor
from lpc.clock import MonotoneClock
from lpc.model.curve import HORIZON_S, retain_seconds
from lpc.wire.bugs import log_bug

logger = logging.getLogger(__name__)

REFIT_S: Final = 30.0
REMEMBERED: Final = 4
"""Blocks whose last use is stored, in multiples of the cache."""
MAX_WAITING: Final = 20_000
"""Events that may wait for the background; beyond it the oldest are dropped."""
MAX_RUNNING: Final = 10_000
"""Running requests whose gap spans are stored; beyond it the oldest request's blocks count as used once."""
MAX_ASKED: Final = 256
"""Blocks per query of the store."""
MAX_POOLED: Final = 10_000
"""Cached answers of the store."""
ROUND_S: Final = 1.0
"""Longest time for which one round of the background processes events."""
TRIM_EVERY_S: Final = 100.0
MOST_FAILURES: Final = 3
"""Failures of the background after which LRU applies until the engine restarts."""
IN_USE_FOLLOWS: Final = 0.02
"""Weight of each request in the running mean of blocks in use."""
NOTICEABLE_S: Final = 1.0
"""A pooled key changes the class only if it is later than the own key by at least this."""


class Ordered(Protocol):
    """A queue that orders blocks by the current rule and values, such as a :class:`FreeQueue`."""

    value_enabled: bool

    @property
    def tables(self) -> Sequence[Table] | None:
        """The classes' values."""

    def set_tables(self, tables: Sequence[Table] | None) -> None:
        """Set the classes' values; None: unknown."""


class _Started(NamedTuple):
    """A request whose prompt lookup has happened, with the full blocks of its prompt.

    ``kept``: it waits, and these blocks are retained for it; ``cached``: see :class:`_Served`, if it has already started.
    """

    request_id: Hashable
    prompt: Sequence[BlockHash]
    at: float
    kept: bool
    cached: int | None


class _Served(NamedTuple):
    """A request whose prefill starts, with the number of its cached tokens."""

    request_id: Hashable
    cached: int


class Plugin:
    """Assigns reuse classes to the blocks of one engine. Call its methods from the scheduler's thread.

    Args:
        capacity: blocks of the engine's cache.
        block_tokens: tokens of a block, as the engine hashes them.
        predictor: called at admission; closed with the plug-in.
        store: of the pooled keys of shared blocks; None: no pooling. Closed with the plug-in.
        clock: seconds since the epoch; None: the system's, see :class:`MonotoneClock`.
        background: starts the learning thread.

    Attributes:
        classes: reuse classes, for queues that follow the plug-in.
        value_enabled: whether the guard lets the retention value order the blocks; otherwise LRU does.
        lru_forced: whether the file ``lru_file`` of the settings exists. Then `tables` is None, nothing is kept for waiting
            requests, and they are served first come, first served.
        ended: requests by origin of their group: a prediction, no answer in time, or aborted.
        hinted: finished requests by hint: ``retain``, ``done``, or ``off`` if the settings disable hints.
        retained: blocks of the engine's cache that hints retain; shared with the engine's queue.
        raised: gap spans in another class because another conversation holds them.
        implausible: answers of the store that are not valid keys.
        failures: exceptions hidden from the engine; ``guard_failures``: those of the background's learning.
        refits: of the curves.
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
        predictor: Predictor,
        store: BlockStore | None = None,
        clock: Callable[[], float] | None = None,
        background: StartBackground = BackgroundThread,
    ) -> None:
        self.settings = settings
        self.predictor = predictor
        self.store = store
        self.classes = grouping.WITH_PREDICTED * KINDS
        self.value_enabled = not settings.guard
        self.lru_forced = False
        self._switch = OperatorsFile(settings.lru_file)
        self._obey()
        self._tables: Sequence[Table] | None = None
        self.ended = {"prediction": 0, "unanswered": 0, "aborted": 0}
        self.hinted = {"retain": 0, "done": 0, "off": 0}
        self.retained: Retained[Any] = Retained(settings.hints_share * capacity)
        self.raised = self.implausible = self.failures = self.guard_failures = self.refits = 0
        self.seconds = 0.0
        self.on_tick: list[Callable[[], None]] = []
        self.tiers: list[Tier] = []
        self._owners = Owners(capacity) if settings.hints_share else None
        self._capacity = capacity
        self.block_tokens = block_tokens
        self._in_use = 0.0
        self._reply_ends = grouping.ReplyEnds()
        self.clock = MonotoneClock(clock)
        self._events: deque[_Started | _Served | FinishedRequest] = deque(maxlen=MAX_WAITING)
        self._appended = self._handled = 0
        self._dropped = False
        """Whether events have been dropped that the background has not noticed."""
        self._gap_spans: OrderedDict[Hashable, list[GapSpan]] = OrderedDict()
        """Stretches of running requests. Only the background writes it."""
        self._retain_s: Sequence[float] = [0.0] * self.classes
        self._by_retain: Sequence[tuple[float, int]] = []
        self._conversations = Conversations()
        self._lately: deque[BlockHash] = deque(maxlen=MAX_ASKED)
        self._pooled: OrderedDict[BlockHash, float] = OrderedDict()
        """Blocks' keys from other conversations. Only the background writes it."""
        self._to_ask = False
        self._monitor = ReuseMonitor(grouping.WITH_PREDICTED, remembered=REMEMBERED * capacity)
        self.ghosts: Ghosts[BlockHash] = Ghosts(capacity, self.classes, sampled, clock=self.now)
        self.misses = Misses(capacity, block_tokens, every=self.ghosts.every, clock=self.now)
        self._fitted_at = -math.inf
        self._ticked_at = self._trimmed_at = time.monotonic()
        self._background = background(self._round)

    # The scheduler's thread.

    def admitted(self, request_id: Hashable, token_ids: Sequence[int], *, session: str | None, category: str = "") -> None:
        """Request a prediction. ``token_ids``: the prompt, which must not change afterwards."""
        self.predictor.ask(request_id, token_ids=token_ids, category=category, conversation_id=session or "")

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
        self._append(_Started(request_id, blocks, self.now(), kept, cached))

    def served(self, request_id: Hashable, cached: int) -> None:
        """Record that a `started` request is served. ``cached``: tokens of its prompt in the cache or a tier."""
        self._append(_Served(request_id, cached))

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
        tenant: str = "",
    ) -> FinishedRequest:
        """Return the reuse classes of a finished request, and its hints.

        If a request ends before its prompt was `started`, its blocks count as used for the first time.

        Args:
            completed: False if it was aborted or failed; its prediction is then ignored.
            blocks: hashes of its computed blocks from the start, which must not change afterwards.
            prompt_blocks: number of these that the prompt filled.
            reply_end: equal for replies with the same end; see `eviction_client.policy.grouping.ReplyEnds`.
            session: digest of the conversation's name, the same in all engines, if known.
            token_ids: the prompt.
            tenant: digest of the cache salt; empty without one.
        """
        now = self.now()
        prediction = self.predictor.take(request_id)
        if prediction is None:
            self.predictor.forget(request_id)
        gap_spans = self._gap_spans.get(request_id, ())
        group = grouping.group_of(gap_spans, self.block_tokens)
        if not completed:
            self.ended["aborted"] += 1
        elif prediction is None:
            self.ended["unanswered"] += 1
        else:
            self.ended["prediction"] += 1
            group = grouping.predicted(prediction.group) if prediction.group else group
        first = first_class(group, self._reply_ends.number(reply_end) if completed else 0)
        runs = self._runs(gap_spans, first, blocks, now)
        retain_s, own_from = self._asked(hints, session, blocks)
        if own_from < len(blocks):
            runs = [run for run in runs if run.end < own_from] + [
                ClassSpan(own_from, run.reuse_class) for run in runs if run.end >= own_from > 0
            ][:1]
            runs.append(ClassSpan(len(blocks), DONE))
        opening = hash(tuple(token_ids[: self.block_tokens]))
        ended = FinishedRequest(
            request_id, session, blocks, prompt_blocks, now, first, runs, retain_s, len(token_ids), opening, tenant
        )
        for tier in self.tiers:
            tier.ended(ended)
        self._append(ended)
        return ended

    def lost(self, request_id: Hashable) -> FinishedRequest:
        """Forget a request whose end could not be read; return it as ended without blocks. Never raises."""
        ended = FinishedRequest(request_id, None, (), 0, self.clock.latest, 0, ())
        self.predictor.forget(request_id)
        self._append(ended)
        return ended

    def follow(self, queue: Ordered, *, value_enabled: bool | None = None) -> None:
        """Set a queue's rule and values to the current ones. ``value_enabled``: overrides the rule."""
        queue.value_enabled = self.value_enabled if value_enabled is None else value_enabled
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
        self, name: str, chunks: int, *, blocks: int, prompts_only: bool, named: Callable[[Any], bytes] = bytes
    ) -> Tier:
        """Add and return a tier below the engine's cache; see :class:`Tier`."""
        tier = Tier(
            name,
            chunks,
            blocks=blocks,
            classes=self.classes,
            prompts_only=prompts_only,
            guarded=self.settings.guard,
            hints_share=self.settings.hints_share,
            named=named,
            tables=lambda: self.tables,
            clock=self.now,
        )
        self.tiers = [*self.tiers, tier]
        return tier

    def drop_tier(self, tier: Tier) -> None:
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
    def tables(self) -> Sequence[Table] | None:
        """The classes' values; None: unknown, or LRU is forced."""
        return None if self.lru_forced else self._tables

    @property
    def reuses(self) -> int:
        """Reuses counted so far."""
        return self._monitor.reused

    @property
    def fitted_classes(self) -> int:
        """Classes with a curve of their own."""
        return self._monitor.seen if self._tables is not None else 0

    def _append(self, event: "_Started | _Served | FinishedRequest") -> None:
        if len(self._events) == MAX_WAITING:
            self._handled += 1  # the oldest is dropped
            self._dropped = True
        self._events.append(event)
        self._appended += 1
        self._background.wake()

    def _runs(self, gap_spans: Sequence[GapSpan], first: int, blocks: Sequence[BlockHash], now: float) -> list[ClassSpan]:
        """Return the classes of a chain. The reply belongs to the last gap span."""
        if not blocks:
            return []
        most = len(blocks)
        runs: list[ClassSpan] = []
        for end, gap in gap_spans:
            end = min(end, most)
            if not runs or end > runs[-1].end:
                runs.append(ClassSpan(end, self._raised(first + gap, blocks, end - 1, now)))
        if not runs:
            return [ClassSpan(most, first)]
        if runs[-1].end < most:
            runs[-1] = ClassSpan(most, runs[-1].reuse_class)
        return runs

    def _raised(self, reuse_class: int, blocks: Sequence[BlockHash], deepest: int, now: float) -> int:
        """Return the class of a gap span: a different one if other conversations give its deepest block a later key."""
        key = self._pooled.get(blocks[deepest]) if self._pooled else None  # in SGLang reading one hash computes all of them
        if key is None or not self.value_enabled:
            return reuse_class
        if not now - OLDEST_S <= key <= now + HORIZON_S:  # also false for NaN
            self.implausible += 1
            return reuse_class
        wanted, by_retain = key - now, self._by_retain
        if wanted <= self._retain_s[reuse_class] + NOTICEABLE_S or not by_retain:
            return reuse_class
        place = bisect_left(by_retain, (wanted, 0))
        self.raised += 1
        return min(by_retain[max(place - 1, 0) : place + 1], key=lambda entry: abs(entry[0] - wanted))[1]

    def _asked(self, hints: Hints, session: str | None, blocks: Sequence[BlockHash]) -> tuple[float, int]:
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
            self._monitor.follow(curves.epoch, grouping.priors_of(curves.hazards))
        until = time.monotonic() + ROUND_S
        self._forget_if_dropped()
        while self._events and time.monotonic() < until:
            event = self._events.popleft()
            try:
                if isinstance(event, _Started):
                    self._arrive(event)
                elif isinstance(event, _Served):
                    self.misses.served(event.request_id, event.cached)
                else:
                    self._end(event)
            finally:
                self._handled += 1
            self._forget_if_dropped()
            pause()
        now = self.now()
        if now - self._fitted_at >= REFIT_S:
            self._fitted_at = now
            self._refit(now)

    def _arrive(self, admitted: _Started) -> None:
        gap_spans = self._monitor.admitted(admitted.prompt, admitted.at)
        self._gap_spans[admitted.request_id] = gap_spans
        self._explain(self.misses.arrived, admitted.request_id, admitted.prompt, gap_spans, admitted.at)
        if admitted.kept:
            above = self.ghosts.following(self.value_enabled and not self.lru_forced)
            for tier in self.tiers:
                tier.ghosts.wait(admitted.request_id, admitted.prompt, above=above)
            self.ghosts.wait(admitted.request_id, admitted.prompt)
        if len(self._gap_spans) > MAX_RUNNING:
            self._forget_oldest()
        if admitted.cached is not None:
            self.misses.served(admitted.request_id, admitted.cached)
        if self.store is not None:
            self._lately.extend(admitted.prompt[end - 1] for end, _ in gap_spans)
            if gap_spans and not gap_spans[-1].gap:  # another engine may know the first unknown block
                self._lately.append(admitted.prompt[gap_spans[-2].end if len(gap_spans) > 1 else 0])
            self._to_ask = True

    def _end(self, ended: FinishedRequest) -> None:
        if self._owners is not None:
            self._owners.record()
        gap_spans = self._gap_spans.pop(ended.request_id, [])
        prompt = ended.blocks[: ended.prompt_blocks]
        if gap_spans and gap_spans[-1].end > len(prompt):  # aborted during its prefill
            gap_spans = [GapSpan(min(end, len(prompt)), gap) for end, gap in gap_spans]
            gap_spans = [s for n, s in enumerate(gap_spans) if s.end > (gap_spans[n - 1].end if n else 0)]
        self._monitor.finished(prompt, gap_spans, ended.first_class, ended.at)
        starts = (0, *(run.end for run in ended.runs))
        freed = [Freed(ended.blocks[start : run.end], run.reuse_class) for start, run in zip(starts, ended.runs, strict=False)]
        self._explain(
            self.misses.ended,
            ended,
            ghosts={"lru": self.ghosts.following(False), "value": self.ghosts.following(True)},
            elsewhere=self._pooled,
            in_use=self._in_use,
        )
        above = self.ghosts.following(self.value_enabled and not self.lru_forced)
        for tier in self.tiers:  # first, while the ghost caches of the pool have not seen this request
            tier.learn(prompt, freed, above)
        enabled = self.ghosts.observe(prompt, freed)
        self._explain(self.misses.judge, ended.tenant, self.ghosts.latest)
        self._served(ended.request_id)
        if self.settings.guard:
            self.value_enabled = enabled
        if self.store is not None and ended.blocks:
            name = self._conversations.name(ended.session, ended.blocks)
            for blocks, reuse_class in freed:
                key = done_key(ended.at) if reuse_class == DONE else ended.at + self._retain_s[reuse_class]
                self.store.record(name, blocks, key)

    def _forget_oldest(self) -> None:
        """Forget the request that has been known longest: its blocks count as used once."""
        oldest = self._gap_spans.popitem(last=False)[0]
        self._served(oldest)
        self.misses.forget(oldest)

    def _forget_if_dropped(self) -> None:
        """Forget all running requests if events were dropped: the ends of some will not come."""
        if not self._dropped:
            return
        self._dropped = False
        while self._gap_spans:
            self._forget_oldest()
            pause()

    def _explain(self, explain: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Count misses. A failure does not stop the guard."""
        try:
            explain(*args, **kwargs)
        except Exception as error:
            self.failed(error)

    def _served(self, request_id: Hashable) -> None:
        for ghosts in (self.ghosts, *(tier.ghosts for tier in self.tiers)):
            ghosts.served(request_id)

    def _refit(self, now: float) -> None:
        steps = self._monitor.fitting(now)
        tables: Sequence[Table] | None = None
        while True:
            try:
                next(steps)
            except StopIteration as end:
                tables = end.value
                break
            pause()
        self.refits += 1
        self.ghosts.resize(self._capacity - self._in_use)
        self.ghosts.set_tables(tables)
        for tier in self.tiers:
            tier.refitted(tables)
        if tables is not None:
            price = self.ghosts.price
            retain_s = []
            for table in tables:
                retain_s.append(min(retain_seconds(table, price), HORIZON_S))
                pause()
            by_retain = sorted((seconds, number) for number, seconds in enumerate(retain_s))
            self._retain_s, self._by_retain = retain_s, by_retain
        self._tables = tables

    def _pool(self) -> None:
        """Write recorded keys to the store, and query it for the deepest blocks of new gap spans."""
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
        """After a failure switch to LRU and discard the guard's evidence.

        LRU stays in force without a guard, which would collect new evidence, and after MOST_FAILURES.
        """
        self.value_enabled = False
        self.guard_failures += 1
        self._tables = None
        for tier in self.tiers:
            tier.distrust()
        self._gap_spans.clear()
        self._monitor = ReuseMonitor(grouping.WITH_PREDICTED, remembered=REMEMBERED * self._capacity)
        self.ghosts = self.ghosts.renewed()
        self._fitted_at = -math.inf
