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

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from eviction_client.pace import finish
from eviction_client.policy.classes import CELLS, Classes
from eviction_client.policy.classifier import Classifier
from eviction_client.policy.continuation import Continuation
from eviction_client.policy.fits import Fits
from eviction_client.policy.ghosts import CHOSEN, GhostCache, Ghosts, sample_of
from eviction_client.policy.prior import Prior, shipped
from eviction_client.policy.queue.free_queue import DONE, Table
from eviction_client.policy.request import NOTHING_KNOWN, Spans, TrackedRequest, Uses, turn_group
from eviction_client.policy.reuse_monitor import REMEMBERED, ReuseMonitor
from eviction_client.policy.rule_tables import RuleTables
from eviction_client.policy.rules import AUTO, CHOOSABLE, HOMES, RULES

H = TypeVar("H", bound=Hashable)


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
        failed: a policy that this one replaces; see :meth:`renewed`.

    Attributes:
        rule, capacity, block_tokens: as given.
        choosable: the rules that the guard may put in force.
        ghosts: one ghost cache per rule.
        monitor: last uses, watched blocks and counts.
        continuation: log-odds of requests and classes without a prediction of their own.
        fits: number of fits, and what they have seen.
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
        failed: "Policy[H] | None" = None,
    ) -> None:
        if rule != AUTO and rule not in RULES:
            raise ValueError(f"unknown rule {rule!r}: one of {', '.join((AUTO, *RULES))}")
        self.rule = rule
        self.capacity = capacity
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
        own = (rule,) if failed is None else ("lru",)
        self.choosable: Sequence[str] = CHOOSABLE if rule == AUTO else own
        homes = HOMES if rule == AUTO and failed is None else own
        combined = Classes() if failed is None else failed.combined
        self.monitor: ReuseMonitor[H] = ReuseMonitor(REMEMBERED * capacity, uses, size_of=size_of)
        self._tables = RuleTables(rule)
        self.continuation = Continuation()
        self._classifier = Classifier(self._tables, self.continuation, combined)
        self.fits = Fits(self.monitor, combined, self.continuation, prior or shipped())
        finish(self._tables.fitting(self.fits.untaught(), combined.keys[:CELLS], self.continuation.of))
        self._new_ghosts = partial(Ghosts, choosable=self.choosable, homes=homes, sample=sample, make=ghost, clock=clock)
        if failed is None:
            self.ghosts = self.new_ghosts(capacity)
        else:
            self.fits.count = failed.fits.count
            self.ghosts = failed.ghosts.renewed(self.choosable)
            self.set_tables_of(self.ghosts)

    def new_ghosts(self, capacity: int) -> Ghosts[Any]:
        """Return ghost caches for a cache of ``capacity`` blocks with the same classes."""
        ghosts: Ghosts[Any] = self._new_ghosts(capacity, self._tables.ghost_classes)
        self.set_tables_of(ghosts)
        return ghosts

    def set_tables_of(self, ghosts: Ghosts[Any]) -> None:
        """Set the tables of ghost caches to those of the last fit."""
        self._tables.set_in(ghosts)

    def renewed(self) -> "Policy[H]":
        """Return a policy that has learned nothing, for after a failure: LRU is in force until a guard shows better.

        The numbers of classes stay, because blocks in the queue have them. Under a fixed rule LRU stays in force.
        """
        return self._again(failed=self)

    @property
    def combined(self) -> Classes:
        """The numbers of the classes that combine the features of all rules but `lpc`."""
        return self._classifier.combined

    @property
    def classes(self) -> int:
        """Number of the queue's classes."""
        return self._tables.classes

    @property
    def plain(self) -> int:
        """The queue's class of blocks of which nothing is known."""
        return self._tables.plain

    @property
    def known_classes(self) -> int:
        """Number of the queue's classes with a number."""
        exact = self._tables.exact
        return len(self.combined.keys) if exact is None else exact.known(self._classifier.categories)

    @property
    def places_by_claim(self) -> bool:
        """Whether a block's place in the queue follows from the highest claim on it alone."""
        return self._tables.exact is not None and self._tables.exact.by_claim

    def class_now(self, block: H, now: float) -> int | None:
        """Return the class of a block by the highest claim on it now, as if just used. From any thread.

        None: the block is forgotten, or its value is below that of all classes.

        Args:
            now: seconds.
        """
        use, exact = self.monitor.use_of(block), self._tables.exact
        if use is None or exact is None:
            return None
        highest = use.claims[0]
        log_odds = highest.log_odds - max(now - highest.at, 0.0) / self.monitor.mean_gap_s
        return exact.class_of(NOTHING_KNOWN, log_odds) or None

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
        return self._tables.of_queue.get(rule)

    @property
    def price(self) -> float:
        """Mean value of the blocks that the rule in force evicts; 0: nothing evicted yet."""
        return self.ghosts.caches[self.in_force].queue.price

    @property
    def reused(self) -> int:
        """Reuses counted so far."""
        return self.monitor.reused

    def started(self, request: TrackedRequest[H]) -> None:
        """Count the reuses in the prompt of a request that starts; set what is known of it. In the background."""
        self.monitor.started(request)

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
            log_odds: log-odds of the continuation probability; None: unknown.
            reply_end: equal for replies with the same end; None: unknown.
            done_from: depth from which its blocks are used no more.
            retain: called with the class of a span, its deepest block and the time; returns the class to use.
        """
        length = len(blocks)
        request.seen = seen = request.conversation is not None  # read first: see TrackedRequest
        turn = turn_group(request.turn) if seen else 0
        request.blocks, request.prompt_blocks, request.at = blocks, prompt_blocks, now
        new_tokens = request.new_blocks * self.block_tokens if seen else 0
        request.features = self._classifier.features_of(request, new_tokens, turn, reply_end, group, log_odds)
        request.done_from = length if done_from is None else done_from
        request.predicted = log_odds is not None
        request.log_odds = self.continuation.by_turn[turn] if log_odds is None else log_odds
        request.mean_gap_s = self.monitor.mean_gap_s
        request.by_rule = None
        spans = self._classifier.spans_of(request, self.monitor.parts_now(request, length))
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

    def learn(self, request: TrackedRequest[H]) -> None:
        """Record a finished request's use of its blocks, and let the ghost caches observe it. In the background."""
        if not request.seen:
            request.unsee()
        self._classifier.by_rule(request)
        combined = self.combined
        numbers = [combined.kept(part.reuse_class, part.features) for part in request.parts]
        self.monitor.finished(request, numbers)
        self.fits.rates.read(request.size * self.block_tokens)
        for number, part in zip(numbers, request.parts, strict=True):
            if combined.keys[number].odds:
                self.continuation.observe(number, request.pooled(part.use))
        self.observe(self.ghosts, request)

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
        for rule, of_rule in self._classifier.by_rule(request).items():
            spans[rule] = of_rule.shortened(length).joined().cut(request.done_from, DONE)
        spans.update(dict.fromkeys(self._tables.combining, spans["value"]))
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
        self.fits.set_sidecar_curves(epoch, hazards)

    def refit_due(self, now: float) -> bool:
        """Return whether the last fit is REFIT_S old."""
        return self.fits.due(now)

    def refit(self, now: float) -> None:
        """Fit at once; see :meth:`refitting`."""
        finish(self.refitting(now))

    def refitting(self, now: float) -> Generator[None, None, None]:
        """Fit the curves and set the tables, in steps of well under a millisecond. In the background.

        Between the steps no other method may be called, except :meth:`finished`.
        """
        learned = yield from self.fits.fitting(now, self.ghosts.caches["wa"])
        yield from self._tables.fitting(learned, self.combined.keys, self.continuation.of)
        self.set_tables_of(self.ghosts)
        self.fits.count += 1
