"""The background of a plug-in: processes the engine's events in order, refits, and ticks once a second."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from eviction_client.background import TICK_S, StartBackground
from eviction_client.block_hash import BlockHash
from eviction_client.events import Events
from eviction_client.fleet_pool import FleetPool
from eviction_client.observability.lru_gain import under_lru
from eviction_client.observability.miss_log import log_misses
from eviction_client.observability.misses import HitUnit, Misses
from eviction_client.observability.rule_log import RuleLog
from eviction_client.observability.thrash_log import ThrashLog
from eviction_client.operators_file import OperatorsFile
from eviction_client.pace import finish, pause
from eviction_client.policy.ghosts import Ghosts
from eviction_client.policy.hints import Owners
from eviction_client.policy.policy import Policy
from eviction_client.policy.queue.free_queue import Table
from eviction_client.policy.request import TrackedRequest
from eviction_client.policy.saved import restore, saving
from eviction_client.policy.tier import ChunkTier
from eviction_client.prefixes import Prefixes
from eviction_client.settings import ClientSettings
from eviction_client.state_file import StateFile
from eviction_client.transport.predictor import Predictor

logger = logging.getLogger(__name__)

ROUND_S: Final = 1.0
"""Longest time for which one round of the background processes events."""
SAVE_EVERY_S: Final = 300.0
"""Time between two saves of what was learned."""
MOST_FAILURES: Final = 3
"""Failures of the background after which LRU applies until the engine restarts."""


class Learner:
    """Learns from the events of one engine.

    The scheduler's thread calls :meth:`append`, and reads the attributes and the tables. All else happens in the background.

    Args:
        capacity: blocks of the engine's cache.
        block_tokens, hits: see :class:`eviction_client.plugin.Plugin`.
        predictor: has the sidecar's curves.
        pool: the fleet's pool; None: no pooling.
        owners: owners of blocks, for hints; None: hints are off.
        now: returns the time, seconds since the epoch; monotonic.
        model: name under which the engine serves its model.
        failed: called with exceptions that the engine does not see.
        background: starts the learning thread.

    Attributes:
        policy: reuse classes, tables, and the rule in force. After a failure another one.
        tiers: below the engine's cache.
        misses: sources of prompt tokens.
        prefixes: prompts' beginnings that were reused most; None: they are not listed.
        switch: the operator's file that forces LRU.
        in_use: mean number of blocks in use; the scheduler's thread sets it.
        guard_failures: failures of the learning.
        on_tick: called about every second; ``ticked_at``: when last, by the monotonic clock.
    """

    def __init__(
        self,
        settings: ClientSettings,
        *,
        capacity: int,
        block_tokens: int,
        hits: HitUnit | None,
        predictor: Predictor,
        pool: FleetPool[BlockHash] | None,
        owners: Owners | None,
        now: Callable[[], float],
        model: str,
        failed: Callable[[Exception], None],
        background: StartBackground,
    ) -> None:
        self.policy: Policy[BlockHash] = Policy(capacity, block_tokens=block_tokens, clock=now, rule=settings.rule)
        self._state = None if settings.state is None else StateFile(settings.state)
        self._saved_at = time.monotonic()
        self._saving = False
        self._go_on(now())
        self._model = model
        self.prefixes: Prefixes[BlockHash] | None = None
        if settings.list_prefixes:
            self.prefixes = Prefixes(settings.list_prefixes, block_tokens)
            self._go_on_with_prefixes(now())
        elif self._state is not None:
            self._state.discard_prefixes()
        self.tiers: list[ChunkTier] = []
        self.misses = Misses(capacity, block_tokens, every=self.policy.ghosts.every, hits=hits)
        self.switch = OperatorsFile(settings.lru_file)
        self.in_use = 0.0
        self.guard_failures = 0
        self.on_tick: list[Callable[[], None]] = []
        self._shadow = settings.shadow
        self._logs_misses = settings.log_misses
        self._capacity = capacity
        self._predictor = predictor
        self._pool = pool
        self._owners = owners
        self._now = now
        self._failed = failed
        self.switch.look()
        self._events = Events()
        self._lru_since = -math.inf
        """Time since which LRU has been in force in the cache and its tiers; infinite: it is not."""
        self._note_order()
        self._rule_log = RuleLog(self.policy.in_force, shadow=settings.shadow)
        self._thrash_log = ThrashLog()
        self.ticked_at = time.monotonic()
        self._background = background(self._round)

    # The scheduler's thread.

    def append(self, handle: Callable[[Any], None], event: Any) -> None:
        """Append an event. ``handle``: the method below that processes it."""
        self._events.append(handle, event)
        self._background.wake()

    @property
    def rule(self) -> str:
        """The rule in force."""
        return "lru" if self.switch.forced else self.policy.in_force

    @property
    def tables(self) -> Sequence[Table] | None:
        """The tables of the rule in force; None: least recently used first."""
        return None if self.switch.forced else self.policy.tables

    def settle(self, timeout: float) -> bool:
        """Wait until the background has processed all events."""
        until = time.monotonic() + timeout
        while not self._events.settled and time.monotonic() < until:
            time.sleep(0.005)
        return self._events.settled

    def close(self) -> None:
        """Stop the background; save what was learned, unless that is running still."""
        self._background.close()
        if self._state is not None and not self._saving:
            self._save()
            self._state.close()

    # The events, in the background.

    def started(self, request: TrackedRequest[BlockHash]) -> None:
        """Look at the prompt of a request that starts, or for which blocks are retained from now on."""
        self.policy.started(request)
        if request.kept:
            above = self.policy.ghosts.caches[self.rule]
            for tier in self.tiers:
                tier.ghosts.wait(request.request_id, request.prompt, above=above)
            self.policy.ghosts.wait(request.request_id, request.prompt)
        else:
            self.policy.ghosts.start(request.request_id, request.prompt)
            self._explain(self._compare, request)
        if self._pool is not None:
            self._pool.started(request)

    def served(self, request: TrackedRequest[BlockHash]) -> None:
        """Compare with LRU when the engine looks up the prompt of a request that has waited."""
        if request.kept and request.conversation is not None:
            self._explain(self._compare, request)

    def finished(self, request: TrackedRequest[BlockHash]) -> None:
        """Learn from a finished request."""
        if self._owners is not None:
            self._owners.record()
        ghosts = self.policy.ghosts
        self._explain(
            self.misses.finished,
            request,
            ghosts=ghosts.caches,
            elsewhere={} if self._pool is None else self._pool.elsewhere,
            in_use=self.in_use,
        )
        if self.prefixes is not None:
            self._explain(self.prefixes.finished, request)
        if self._logs_misses:
            self._explain(log_misses, request.request_id, self.misses.latest)
        above = ghosts.caches[self.rule]
        for tier in self.tiers:  # first, while the ghost caches of the pool have not seen this request
            tier.learn(request, above)
        self.policy.learn(request)
        self._explain(self.misses.judge, request.tenant, ghosts.latest_asked, ghosts.latest)
        self.release(request)
        self._note_order()
        if self._pool is not None:
            self._pool.finished(request, self.policy)

    def reset(self, at: float) -> None:
        """Empty the ghost caches, as the engine has emptied its cache. ``at``: seconds."""
        self.policy.ghosts.clear()
        self.misses.reset(at)

    def release(self, request: TrackedRequest[BlockHash]) -> None:
        """Release what the ghost caches retain for a request."""
        for ghosts in self._all_ghosts():
            ghosts.release(request.request_id)

    # The rounds, in the background.

    def _round(self) -> None:
        """Run one round of learning.

        If the guard fails, its last choice must not stay in force, so the order becomes LRU.
        """
        try:
            if self.guard_failures < MOST_FAILURES:
                self._learn()
            else:
                self._events.clear()
        except Exception as error:
            self._distrust()
            self._failed(error)
        try:
            if self._pool is not None:
                self._pool.exchange(self.policy, self._now())
            self._tick()
            if self._pool is not None:
                self._pool.trim(self._now())
        except Exception as error:
            self._failed(error)

    def _learn(self) -> None:
        """Process events for at most about ROUND_S, so that the operator's file and the store are looked at under any load."""
        curves = self._predictor.reuse_curves
        if curves is not None:
            self.policy.set_sidecar_curves(curves.epoch, curves.hazards)
        until = time.monotonic() + ROUND_S
        self._release_if_dropped()
        while time.monotonic() < until and self._events.handle_next():
            self._release_if_dropped()
            pause()
        self._explain(self._rule_log.update, self.policy.ghosts, time.monotonic())
        self._explain(self._thrash_log.update, self.misses.repeated_prefill.share, time.monotonic())
        now = self._now()
        if self.policy.refit_due(now):
            self._refit(now)

    def _refit(self, now: float) -> None:
        self.policy.ghosts.resize(self._capacity, in_use=self.in_use)
        self.policy.refit(now)
        for tier in self.tiers:
            tier.refitted()

    def _go_on(self, now: float) -> None:
        """Go on from what an earlier process has saved."""
        if self._state is None or (found := self._state.read()) is None:
            return
        values, age_s = found
        try:
            guarded = restore(self.policy, values, now, age_s)
        except ValueError as error:
            self._state.unusable(error)
            return
        guard = "" if guarded else "; the guard starts again, because rules or cache are others"
        logger.info(
            "learned prefix cache: goes on from %s, %.0f s old: %d classes, rule %s%s",
            self._state.path,
            age_s,
            self.policy.fits.seen,
            self.policy.in_force,
            guard,
        )

    def _go_on_with_prefixes(self, now: float) -> None:
        """Go on from the list of prefixes that an earlier process has saved; without a usable one from the beginning."""
        if self.prefixes is None or self._state is None or not (lines := self._state.read_prefixes()):
            return
        try:
            self.prefixes.go_on(lines, self._model, now, BlockHash)
        except ValueError as error:
            logger.warning("learned prefix cache: the list in %s is not used: %s", self._state.prefixes, error)

    def _save(self) -> None:
        """Save what was learned; nothing after a failure of the learning."""
        if self._state is None or self.guard_failures:
            return
        self._saving, self._saved_at = True, time.monotonic()
        try:
            self._state.write(finish(saving(self.policy, self._now())))
            if self.prefixes is not None:
                self._state.write_prefixes(self.prefixes.saved(self._model, self._now()))
        except Exception as error:
            self._failed(error)
        self._saving = False

    def _tick(self) -> None:
        """Do what is due about every second."""
        at = time.monotonic()
        if at - self.ticked_at >= TICK_S:
            self.ticked_at = at
            self.switch.look()
            self._note_order()
            for callback in self.on_tick:
                callback()
            if at - self._saved_at >= SAVE_EVERY_S:
                self._save()

    def _distrust(self) -> None:
        """After a failure switch to LRU and discard what was learned, the guard's evidence too.

        LRU stays in force under a fixed rule, for which no guard would collect new evidence, and after MOST_FAILURES.
        """
        self.guard_failures += 1
        if self._state is not None:
            self._state.discard()
        self.policy = self.policy.renewed()
        for tier in self.tiers:
            tier.distrust(self.policy)
        self._note_order()

    def _release_if_dropped(self) -> None:
        """Release what the ghost caches retain for all requests if events were dropped: the ends of some will not come."""
        if self._events.dropped:
            self._events.dropped = False
            for ghosts in self._all_ghosts():
                ghosts.release_all()

    def _all_ghosts(self) -> Sequence[Ghosts[Any]]:
        return self.policy.ghosts, *(tier.ghosts for tier in self.tiers)

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
        forced = self._shadow or self.switch.forced
        others = () if forced else (self.policy.in_force, *(tier.rule for tier in self.tiers))
        if any(rule != "lru" for rule in others):
            self._lru_since = math.inf
        elif self._lru_since == math.inf:
            self._lru_since = self._now()

    def _explain(self, explain: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Count misses, or log the rule. A failure does not stop the guard."""
        try:
            explain(*args, **kwargs)
        except Exception as error:
            self._failed(error)
