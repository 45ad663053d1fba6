"""The policy: from a prompt's blocks to reuse classes, tables and the rule in force.

It knows no engine, thread, store or clock. An engine's plug-in, its CPU tier, LMCache's controller and the simulator run this
same object:

1. :meth:`Policy.started`: a request starts. Reuses in its prompt are counted, and its gap spans are found.
2. :meth:`Policy.finished`: the request has ended. Its blocks get their classes. This is all that an engine waits for.
3. :meth:`Policy.learn`: the same request, in the background: last uses, watched blocks, ghost caches, guard.
4. :meth:`Policy.refitting`: every REFIT_S, in steps: the curves and tables of all classes.

:meth:`Policy.tables` are the tables of the rule in force. The lists are shared and grow: a class that appears between two fits
gets the table of its cell.
"""

import math
from array import array
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from eviction_client.pace import finish
from eviction_client.policy.classes import CELLS, MOST_CLASSES, Classes
from eviction_client.policy.features import (
    NOTHING_KNOWN,
    REPLY_ENDS,
    TENANTS,
    TURN_GROUPS,
    Features,
    log_odds_of,
    new_group,
    odds_group,
    turn_group,
)
from eviction_client.policy.fit import Hazards, emptied, fitting
from eviction_client.policy.frequent import Frequent
from eviction_client.policy.ghosts import CHOSEN, GhostCache, Ghosts, sample_of
from eviction_client.policy.prior import Prior, shipped
from eviction_client.policy.queue.free_queue import DONE, Table, Tables
from eviction_client.policy.request import TrackedRequest
from eviction_client.policy.reuse_monitor import (
    HALF_LIFE_S,
    PER_STEP,
    REMEMBERED,
    Counts,
    ReuseMonitor,
    add,
    nothing,
)
from eviction_client.policy.rules import AUTO, CHOOSABLE, HOMES, RULES
from eviction_client.policy.rules.base import Learned, Rule
from eviction_client.policy.spans import Span, Spans, span_of
from eviction_client.policy.uses import Uses
from lpc.model.curve import interval_of, values
from lpc.model.probability import logit

H = TypeVar("H", bound=Hashable)
K = TypeVar("K", bound=Hashable)

REFIT_S: Final = 30.0
LIFE_S: Final = 100.0
"""Time that a block stays in the cache, for `wa`, before one was evicted."""
TABLES_PER_STEP: Final = 8
"""Classes whose tables are calculated in one step: each takes 30 to 50 µs."""
ODDS_FOLLOW: Final = 0.05
"""Weight of each request in the running mean of the log-odds of its classes."""
LIFE_FOLLOWS: Final = 0.3
"""Weight of each fit in the running mean of this time."""
INTERVALS_GIVEN_UP: Final = interval_of(600.0)
"""Intervals of age up to 600 s, at which a conversation counts as continued or not."""


class Policy(Generic[H]):
    """Reuse classes, tables and guard of one cache. Not thread-safe: see each method for its thread.

    Args:
        capacity: blocks of the cache.
        block_tokens: tokens of a block.
        rule: one of `eviction_client.policy.rules.RULES`, or AUTO: the guard chooses.
        uses: table of the blocks' latest uses; None: a new one.
        size_of: see :class:`ReuseMonitor`.
        sample: selects the ghost caches' blocks, as `eviction_client.policy.ghosts.sample_of`; ``ghost``: creates such a cache.
        clock: seconds; never goes back. Only the ghost caches' queues read it.

    Attributes:
        rule: as given.
        classes: number of classes, for queues; ``plain``: that of blocks of which nothing is known.
        combined: the numbers of the classes that combine the features of all rules but `lpc`.
        ghosts: one ghost cache per rule; ``choosable``: the rules that its guard may put in force.
        turn_odds: log-odds of the continuation by turn group, for requests without a prediction; each fit sets them.
        refits: number of fits; ``seen``: classes with counts, as of the last one.
    """

    def __init__(
        self,
        capacity: int,
        *,
        block_tokens: int,
        clock: Callable[[], float],
        rule: str = AUTO,
        prior: Prior | None = None,
        uses: Uses[H] | None = None,
        size_of: Callable[[Sequence[H]], int] = len,
        sample: Callable[[Sequence[Any], int], list[Any]] = sample_of,
        ghost: type[GhostCache[Any]] = GhostCache,
    ) -> None:
        if rule != AUTO and rule not in RULES:
            raise ValueError(f"unknown rule {rule!r}: one of {', '.join((AUTO, *RULES))}")
        self.rule = rule
        self.block_tokens = block_tokens
        self._again = partial(
            Policy,
            capacity,
            block_tokens=block_tokens,
            clock=clock,
            rule=rule,
            prior=prior,
            size_of=size_of,
            sample=sample,
            ghost=ghost,
        )
        self.refits = 0
        self._homes = HOMES if rule == AUTO else (rule,)
        """The guard's home rules: after a failure LRU alone."""
        self._prior = prior or shipped()
        self._monitor: ReuseMonitor[H] = ReuseMonitor(REMEMBERED * capacity, uses, size_of=size_of)
        self._reply_ends = Frequent(REPLY_ENDS)
        self._tenants = Frequent(TENANTS - 1)
        self.combined = Classes()
        self._exact = RULES[rule] if rule != AUTO and RULES[rule].exact else None
        """The rule whose own classes the queue has; None: it has the combined ones."""
        self.classes = MOST_CLASSES if self._exact is None else self._exact.classes
        self._combined = [
            each.name for each in RULES.values() if each.combines or (each.exact and each.choosable and each.name != rule)
        ]
        """Rules whose ghost caches have the combined classes: also those that the guard puts in force with these."""
        self.plain = 0 if self._exact is None else self._exact.class_of(NOTHING_KNOWN, 0.0)
        self._predicted: Mapping[int, Sequence[float]] = {}
        self._epoch: str | None = None
        self._fitted_at = -math.inf
        self.seen = 0
        self._tokens = 0
        self._read_s = self._read_tokens = 0.0
        self._life_s = LIFE_S
        self._odds: dict[int, float] = {}
        """Running mean of the predicted log-odds of a class's requests."""
        self.turn_odds: Sequence[float] = [0.0] * TURN_GROUPS
        self._sample, self._ghost = sample, ghost
        self._clock = clock
        self.choosable: Sequence[str] = CHOOSABLE if rule == AUTO else (rule,)
        self._ghost_tables: Mapping[str, Sequence[Table] | None] = {}
        self._lists: dict[str, Tables] = {}
        """Tables by rule and class of the queue."""
        self._of_combined: Sequence[tuple[Rule, Tables, Tables]] = ()
        """Rules with the tables of their own classes, and of the combined ones, as the last fit made them."""
        cells = [values(hazards) for hazards in self._prior]
        self._learned = Learned(self._monitor.mean_gap_s, 0.0, 0.0, LIFE_S, {}, cells, {}, {})
        self.ghosts = self.new_ghosts(capacity)
        finish(self._publishing(self._learned))

    def new_ghosts(self, capacity: int) -> Ghosts[Any]:
        """Return ghost caches for a cache of ``capacity`` blocks with the same classes."""
        classes = {name: MOST_CLASSES if name in self._combined else rule.classes for name, rule in RULES.items()}
        classes[CHOSEN] = self.classes
        ghosts: Ghosts[Any] = Ghosts(
            capacity,
            classes,
            choosable=self.choosable,
            homes=self._homes,
            sample=self._sample,
            make=self._ghost,
            clock=self._clock,
        )
        self.set_tables_of(ghosts)
        return ghosts

    def set_tables_of(self, ghosts: Ghosts[Any]) -> None:
        """Set the tables of ghost caches to those of the last fit."""
        if self._ghost_tables:
            ghosts.set_tables(self._ghost_tables, self._lists)

    def renewed(self) -> "Policy[H]":
        """Return a policy that has learned nothing, for after a failure: LRU is in force until a guard shows better.

        The numbers of classes stay, because blocks in the queue have them. Under a fixed rule LRU stays in force.
        """
        fresh: Policy[H] = self._again()
        fresh._homes = ("lru",)
        fresh.combined = self.combined
        fresh.choosable = CHOOSABLE if self.rule == AUTO else ("lru",)
        fresh.ghosts = self.ghosts.renewed(fresh.choosable)
        fresh.set_tables_of(fresh.ghosts)
        fresh.refits = self.refits
        return fresh

    @property
    def in_force(self) -> str:
        """The rule that orders the blocks."""
        return self.ghosts.guard.in_force

    @property
    def tables(self) -> Sequence[Table] | None:
        """The tables of the rule in force; None: least recently used first."""
        return self.tables_of(self.in_force)

    def tables_of(self, rule: str) -> Sequence[Table] | None:
        """Return the tables of a rule for the queue's classes; None: least recently used first. From any thread."""
        return self._lists.get(rule)

    @property
    def known_classes(self) -> int:
        """Number of the queue's classes with a number."""
        return len(self.combined.keys) if self._exact is None else self.classes

    @property
    def reused(self) -> int:
        """Reuses counted so far."""
        return self._monitor.reused

    @property
    def price(self) -> float:
        """Mean value of the blocks that the rule in force evicts; 0: nothing evicted yet."""
        return self.ghosts.caches[self.in_force].queue.price

    def started(self, request: TrackedRequest[H]) -> None:
        """Count the reuses in the prompt of a request that starts; set what is known of it. In the background."""
        self._monitor.started(request)

    def finished(
        self,
        request: TrackedRequest[H],
        blocks: Sequence[H],
        prompt_blocks: int,
        now: float,
        *,
        group: int = 0,
        log_odds: float | None = None,
        reply_end: Hashable = None,
        done_from: int | None = None,
        retain: Callable[[int, H, float], int] | None = None,
    ) -> TrackedRequest[H]:
        """Set and return a finished request's blocks and their classes. In the thread of the queue; takes microseconds.

        Args:
            request: its blocks count as used for the first time if the background has not looked at its prompt.
            blocks: its computed blocks, from the start.
            prompt_blocks: number of these that the prompt filled.
            now: seconds; never goes back.
            group: the sidecar's group; 0: none.
            log_odds: of the continuation probability; None: unknown.
            reply_end: equal for replies with the same end; None: unknown.
            done_from: depth from which its blocks are used no more.
            retain: called with the class of a span, its deepest block and the time; returns the class to use.
        """
        length, tenant = len(blocks), request.tenant
        request.seen = seen = request.conversation is not None  # read first: see TrackedRequest
        turn = turn_group(request.turn) if seen else 0
        request.blocks, request.prompt_blocks, request.at = blocks, prompt_blocks, now
        request.features = Features(
            0,
            new_group(request.new_blocks * self.block_tokens) if seen and request.new_blocks else 0,
            turn,
            self._reply_ends.number(reply_end, now),
            1 + self._tenants.number(tenant, now) if tenant else 0,
            0,
            group,
            odds_group(log_odds),
        )
        request.done_from = length if done_from is None else done_from
        request.predicted = log_odds is not None
        request.log_odds = self.turn_odds[turn] if log_odds is None else log_odds
        request.mean_gap_s = self._monitor.mean_gap_s
        request.by_rule = None
        parts = self._monitor.parts_now(request, length)
        if self._exact is None:
            spans = request.parts = self._in_combined_classes(request, parts)
        else:
            request.parts = Spans(parts)
            spans = self._in_own_classes(self._exact, request)
        if retain is not None:
            spans = spans.of_classes(
                [
                    retain(span.reuse_class, blocks[span.end - 1], now) if span.end > span.start else span.reuse_class
                    for span in spans
                ]
            )
        request.newest = spans[-1].reuse_class
        request.spans = spans.joined()
        if done_from is not None:
            request.spans = request.spans.cut(done_from, DONE)
        return request

    def _in_combined_classes(self, request: TrackedRequest[H], parts: Iterable[Span]) -> Spans:
        """Return the parts of a request's blocks with all their features and their combined classes."""
        _, new, turn, reply_end, tenant, _, group, own = request.features
        known, used, keys, now = self.combined.numbers, self.combined.used, self.combined.keys, request.at
        found = Spans()
        for start, end, _, (gap, _, _, _, _, level, _, _), shared in parts:
            odds = own
            if shared is not None and (odds or shared.predicted):
                odds = odds_group(request.pooled(shared))
            # As a plain tuple: making features takes three times as long.
            key = gap, new, turn, reply_end, tenant, level, 0 if gap else group, odds
            number = known.get(key)
            if number is None:
                features = Features(*key)
                number = self._new_number(features, now)
            else:
                features = keys[number]
                used[number] = now
            found.append(span_of((start, end, number, features, shared)))
        return found

    @staticmethod
    def _in_own_classes(rule: Rule, request: TrackedRequest[H]) -> Spans:
        """Return the parts of a request's blocks with the rule's own classes."""
        class_of, pooled = rule.class_of, request.pooled
        _, new, turn, _, _, _, _, _ = request.features
        found = Spans()
        for start, end, _, seen, shared in request.parts:
            number = class_of(Features(seen.gap, new, turn, 0, 0, seen.level), pooled(shared))
            found.append(span_of((start, end, number, seen, shared)))
        return found

    def _new_number(self, key: Features, now: float) -> int:
        """Return the number of a class; a new one gets the tables that it has without the sidecar, or those of its cell."""
        number, new = self.combined.number(key, now)
        if new:
            log_odds = self._log_odds_of(number)
            for rule, tables, of_combined in self._of_combined:
                of_combined[number] = rule.table_of(key, log_odds, tables, self._learned)
        return number

    def learn(self, request: TrackedRequest[H]) -> None:
        """Record a finished request's use of its blocks, and let the ghost caches observe it. In the background."""
        if not request.seen:
            request.unsee()
        self._by_rule(request)
        numbers = [self.combined.kept(part.reuse_class, part.features) for part in request.parts]
        self._monitor.finished(request, numbers)
        self._tokens += request.size * self.block_tokens
        for number, part in zip(numbers, request.parts, strict=True):
            if self.combined.keys[number].odds:
                log_odds = request.pooled(part.use)
                before = self._odds.get(number, log_odds)
                self._odds[number] = before + ODDS_FOLLOW * (log_odds - before)
        self.observe(self.ghosts, request)

    def _by_rule(self, request: TrackedRequest[H]) -> Mapping[str, Spans]:
        """Return a request's parts in the classes of each rule, found once for the ghost caches of the cache and its tiers.

        Those of `value` are the ones of all rules of `_combined`.
        """
        if request.by_rule is None:
            if self._exact is not None:
                request.parts = self._in_combined_classes(request, request.parts)
            request.by_rule = {"value": request.parts}
            for name, rule in RULES.items():
                if name not in self._combined:
                    request.by_rule[name] = request.parts.of_classes(
                        rule.class_of(part.features, request.pooled(part.use)) for part in request.parts
                    )
        return request.by_rule

    def observe(
        self,
        ghosts: Ghosts[Any],
        request: TrackedRequest[H],
        *,
        most: int | None = None,
        above: GhostCache[Any] | None = None,
    ) -> str:
        """Let the ghost caches of this cache, or of a tier, observe a finished request. In the background.

        Args:
            most: number of its first blocks that the cache stores; None: all.
            above: cache with priority.

        Returns:
            The rule that should be in force.
        """
        length = len(request.blocks) if most is None else min(most, len(request.blocks))
        spans: dict[str, Spans] = {}
        for rule, of_rule in self._by_rule(request).items():
            spans[rule] = of_rule.shortened(length).joined().cut(request.done_from, DONE)
        spans.update(dict.fromkeys(self._combined, spans["value"]))
        # As in the queue: also in the class in which another engine's conversations hold a block.
        spans[CHOSEN] = request.spans.shortened(length).joined()
        chain = request.blocks[:length]
        prompt = min(request.prompt_blocks, length)
        return ghosts.observe(chain, prompt, spans, request=request.request_id, above=above)

    def set_sidecar_curves(self, epoch: str, hazards: Mapping[int, Sequence[float]]) -> None:
        """Set the sidecar's hazards [INTERVALS] by its groups. In the background.

        Args:
            epoch: identifies the numbering of the groups; with a new one their classes are given up.
        """
        self._predicted = hazards
        if epoch != self._epoch:
            if self._epoch is not None:
                self._move(self.combined.ungroup())
            self._epoch = epoch

    def _move(self, numbers: Mapping[int, int]) -> None:
        """Give up classes; others take over their counts: new numbers by old."""
        self._monitor.move(numbers)
        for number in numbers:
            self._odds.pop(number, None)

    def refit_due(self, now: float) -> bool:
        """Return whether the last fit is REFIT_S old."""
        return now - self._fitted_at >= REFIT_S

    def refit(self, now: float) -> None:
        """Fit at once; see :meth:`refitting`."""
        finish(self.refitting(now))

    def refitting(self, now: float) -> Generator[None, None, None]:
        """Fit the curves and set the tables, in steps of well under a millisecond. In the background.

        Between the steps no other method may be called, except :meth:`finished`.
        """
        seconds = now - self._fitted_at
        self._fitted_at = now
        monitor = self._monitor
        self._move(self.combined.release(now))
        yield from monitor.decay(now)
        counts = yield from monitor.counts(now)
        of_cells, of_own, of_classes = yield from fitting(counts, self.combined.keys, self._prior, self._predicted)
        cells = []
        for hazards in of_cells:
            cells.append(values(hazards))
            yield
        newest = yield from self._newest_by_request(counts)
        self.seen = len(counts)
        yield from emptied(counts)
        own = yield from _tables(of_own)
        of_sidecar = yield from _tables(of_classes)
        sidecar = {self.combined.keys[number]: table for number, table in of_sidecar.items()}
        self.turn_odds = yield from _turn_odds(newest)
        self._learn_rates(seconds)
        rates = self._read_s, self._read_tokens, self._life_s
        yield from self._publishing(Learned(monitor.mean_gap_s, *rates, newest, cells, own, sidecar))
        self.refits += 1

    def _log_odds_of(self, number: int) -> float:
        """Return the log-odds of a class: the running mean of its requests', or of a new one its group's."""
        key = self.combined.keys[number]
        return self._odds.get(number, log_odds_of(key.odds) if key.odds else self.turn_odds[key.turn])

    def _newest_by_request(
        self, counts: Mapping[int, tuple[Counts, Counts]]
    ) -> Generator[None, None, dict[int, tuple[Counts, Counts]]]:
        """Return the counts of blocks used once, by class of `wa`, in steps."""
        found: dict[int, tuple[Counts, Counts]] = {}
        for done, (number, pair) in enumerate(counts.items(), 1):
            key = self.combined.keys[number]
            if not key.gap:
                add(found.setdefault(key.new * TURN_GROUPS + key.turn, nothing()), pair)
            if not done % PER_STEP:
                yield
        yield
        return found

    def _learn_rates(self, seconds: float) -> None:
        """Learn from the last ``seconds`` how fast requests read tokens, and how long blocks stay under `wa`."""
        if not math.isfinite(seconds) or seconds <= 0.0:
            return
        kept = 0.5 ** (seconds / HALF_LIFE_S)
        self._read_s, self._read_tokens = kept * self._read_s + seconds, kept * self._read_tokens + self._tokens
        self._tokens = 0
        cache = self.ghosts.caches["wa"]
        evicted, cache.evicted = cache.evicted, 0
        if evicted:
            # Little's law: blocks in the cache = rate x time in it.
            self._life_s += LIFE_FOLLOWS * (cache.room * seconds / evicted - self._life_s)

    def _publishing(self, learned: Learned) -> Generator[None, None, None]:
        """Make the tables of all rules those in use, in steps."""
        ghost_tables: dict[str, Tables | None] = {}
        lists: dict[str, Tables] = {}
        of_combined: list[tuple[Rule, Tables, Tables]] = []
        for name, rule in RULES.items():
            ghost_tables[name] = tables = yield from rule.tables(learned)
            like = rule.like(learned)
            if like is not None:
                lists[name] = lists[like]
            elif tables is not None and rule is self._exact:
                lists[name] = tables
            elif tables is not None:
                lists[name] = Tables([tables[0]] * MOST_CLASSES)
                lists[name].soon = tables.soon
                of_combined.append((rule, tables, lists[name]))
        for number, key in enumerate(self.combined.keys):
            if not number % PER_STEP:
                yield
            log_odds = self._log_odds_of(number)
            for rule, tables, of_all in of_combined:
                of_all[number] = rule.table_of(key, log_odds, tables, learned)
        for rule, tables, of_all in of_combined:
            if rule.combines:
                of_all[:CELLS] = tables
        ghost_tables.update({name: lists[name] for name in self._combined})
        self._learned, self._of_combined, self._lists, self._ghost_tables = learned, of_combined, lists, ghost_tables
        self.set_tables_of(self.ghosts)


def _tables(hazards: dict[K, Hazards]) -> Generator[None, None, dict[K, Table]]:
    """Return the tables of hazards, in steps.

    As arrays, and one after the other: freeing 100,000 floats at once takes milliseconds.
    """
    tables: dict[K, Table] = {}
    for key in list(hazards):
        tables[key] = array("d", values(hazards.pop(key)))
        if not len(tables) % TABLES_PER_STEP:
            yield
    yield
    return tables


def _turn_odds(newest: Mapping[int, tuple[Counts, Counts]]) -> Generator[None, None, list[float]]:
    """Return the log-odds, by turn group, that a block is used again within the intervals up to INTERVALS_GIVEN_UP."""
    found = []
    for turn in range(TURN_GROUPS):
        own = [pair for number, pair in newest.items() if number % TURN_GROUPS == turn]
        stays = 1.0
        for i in range(INTERVALS_GIVEN_UP):
            stays *= 1.0 - (sum(pair[0][i] for pair in own) + 0.02) / (sum(pair[1][i] for pair in own) + 0.5)
        found.append(logit(1.0 - stays))
        yield
    return found
