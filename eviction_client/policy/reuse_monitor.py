"""What a cache sees of its own blocks: gaps, turns and uses of each, and reuses counted by reuse class.

The *gap* between a block's last two uses splits a prompt into spans: a system prompt used two seconds ago, the conversation's
history used two minutes ago, and new blocks. It needs no identity, so it also covers repeated prompts without a session:
evaluation suites, retries, documents, few-shot templates.

The *turn* is recognised without identity too: the deepest known block of a prompt was made by some turn, and this is the next.
A block that several requests have extended, such as the end of a system prompt, is shared and says nothing of the turn.

All of this is remembered for REMEMBERED times the cache, so that it does not depend on the rule in force. Replies are
remembered with prompts: half of the first turns of Chatbot Arena have no full block of prompt, but a reply.

Requests overlap, so what one found when it arrived is out of date when it ends. :meth:`ReuseMonitor.parts_now` and
:meth:`ReuseMonitor.finished` read the latest uses again, or the claims of requests that ended in between would be lost.

The number of uses is forgotten sooner: when requests have used that many blocks since, new or not. Otherwise blocks that were
popular once keep a high level. With it `few-shot` at 2 and 3% of the working set (rule `value`, seeds 100 and 101) hits 53.7
49.0 59.5 57.6% instead of 53.0 47.4 58.6 55.6 (LFU 52.7 47.9 58.9 57.5), Mooncake at 1% 10.54 instead of 10.61, and at other
sizes the same within 0.03.

Of consecutive blocks of one class the deepest is *watched*. Of the new blocks it is the deepest of the prompt, and without one,
of the reply: some chat templates rewrite replies, which are then never used again. A later prompt of any conversation that
contains the block counts as a reuse at the block's age. Blocks that still wait count for the ages they have reached (censoring;
Kaplan and Meier 1958).

Pure Python: this runs inside the engine's process, in the background.
"""

import itertools
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from eviction_client.pace import PIECE, in_pieces
from eviction_client.policy.request import (
    LAST_TURN,
    MOST_USES,
    NOTHING_KNOWN,
    Claim,
    Span,
    TrackedRequest,
    Use,
    Uses,
    gap_class,
    level_of,
    seen,
    span_of,
)
from eviction_client.recent import Recent
from lpc.model.curve import EDGES, HORIZON_S, INTERVALS, interval_of

REMEMBERED: Final = 16
"""Blocks whose last use is remembered, in multiples of the cache. Measured: 4 is too short for a cache of 1% of the trace."""
HALF_LIFE_S: Final = 1800.0
"""Half-life of the counts."""
SHARED_FROM: Final = 3
"""Extensions from which on a block is shared."""
MOST_CLAIMS: Final = 32
"""Conversations whose probabilities a block remembers, the highest. The next one counts when the first are over."""
PER_STEP: Final = 50
"""Classes whose counts one step of a fit reads: each takes up to 6 µs."""
EXPIRED_PER_STEP: Final = 500
"""Expired blocks that one step removes: about a third of a millisecond."""
MEAN_GAP_S: Final = 100.0
"""Mean gap between turns before one was observed, as in LPC."""

SHORTEST_GAP_S: Final = 0.1
"""Smallest mean gap, so that its inverse is finite."""

_conversations: Final = itertools.count(1)
"""Numbers of conversations, unique in the process: a monitor that replaces another sees requests that started under that."""

Counts = list[float]
"""By interval of age."""

H = TypeVar("H", bound=Hashable)


class Watch(Generic[H]):
    """Watched blocks of one class, ordered by last use.

    Attributes:
        number: the class.
        newest: whether its blocks were used for the first time.
    """

    __slots__ = ("blocks", "newest", "number")

    def __init__(self, number: int, newest: bool) -> None:
        self.number = number
        self.newest = newest
        self.blocks: dict[H, float] = {}


class ReuseMonitor(Generic[H]):
    """Splits prompts into gap spans, recognises turns, watches blocks, and counts reuses by class. Not thread-safe.

    Args:
        remembered: blocks that requests use until a block's uses are forgotten.
        uses: table of the latest uses; None: of as many blocks.
        size_of: number of blocks in some entries of a chain; entries are blocks, or the simulator's segments.
        half_life_s: half-life of the counts, seconds.

    Attributes:
        reused: reuses counted so far.
        mean_gap_s: mean gap between the turns of a conversation.
    """

    def __init__(
        self,
        remembered: float,
        uses: Uses[H] | None = None,
        *,
        size_of: Callable[[Sequence[H]], int] = len,
        half_life_s: float = HALF_LIFE_S,
    ) -> None:
        self.reused = 0
        self._half_life_s = half_life_s
        self._decays = [0.5 ** ((high - low) / half_life_s) for low, high in itertools.pairwise(EDGES)]
        """Weight that a count keeps over each interval of age."""
        self._left_at_horizon = [0.5 ** ((HORIZON_S - edge) / half_life_s) for edge in EDGES[:-1]]
        self._remembered = remembered
        self._uses: Uses[H] = Recent(int(remembered)) if uses is None else uses
        self._used = 0
        """Blocks that finished requests have used."""
        self._size_of = size_of
        self._extended: Recent[H, int] = Recent(100_000)
        """How often a block was the deepest known one of a longer prompt."""
        self._watch_of: dict[H, Watch[H]] = {}
        self._watches: dict[int, Watch[H]] = {}
        self._moved: list[Watch[H]] = []
        """Watches of former numbers that still hold blocks."""
        self._reuses: dict[int, Counts] = {}
        self._at_risk: dict[int, Counts] = {}
        """Counts of blocks that were reused or have expired."""
        self._decayed_at: float | None = None
        self._gaps = self._gaps_s = 0.0

    @property
    def mean_gap_s(self) -> float:
        """Mean seconds between a turn's end and the next turn."""
        return max(self._gaps_s / self._gaps, SHORTEST_GAP_S) if self._gaps >= 1.0 else MEAN_GAP_S

    def started(self, request: TrackedRequest[H]) -> None:
        """Count the reuses in the prompt of a request that starts, and set what is known of it.

        If its start lies before a block's last use, another request has used the block since: the gap is 0.
        """
        prompt, now = request.prompt, request.started_at
        watch_of, uses = self._watch_of, self._uses.get
        spans: list[Span] = []
        depth, start, before, use = 0, 0, None, None
        for piece in in_pieces(prompt):
            for block in piece:
                watch = watch_of.pop(block, None)
                if watch is not None:
                    self._reused(watch, max(now - watch.blocks.pop(block), 0.0))
                before, use = use, uses(block)
                if use is not before and depth:
                    spans.append(self._gap_span(start, depth, before, now))
                    start = depth
                depth += 1
        if depth:
            spans.append(self._gap_span(start, depth, use, now))
        request.gap_spans, request.size = spans, self._size_of(prompt)
        deepest = next((span for span in reversed(spans) if span.use is not None), None)
        request.old = old = deepest.end if deepest is not None else 0
        request.new_blocks = self._size_of(prompt[old:]) if old < depth else 0
        request.turn, own = 1, None
        if deepest is not None and deepest.use is not None:
            end = prompt[deepest.end - 1]
            extended = self._extended.get(end) or 0
            if deepest.end < depth:
                self._extended.put(end, extended + 1)
            if extended < SHARED_FROM:
                request.turn = deepest.use.turn + 1
                own = deepest.use.only if deepest.end >= deepest.use.prompt else None
        request.opens = own is None
        own = next(_conversations) if own is None else own
        request.known = _joined(spans, own)
        request.conversation = own  # last: see TrackedRequest

    def moved_here(self, request: TrackedRequest[H], claim: Claim, turn: int) -> None:
        """Let a request that has started continue a conversation of another engine, unless it continues one of this cache.

        Args:
            claim: of this conversation, at its latest turn; ``turn``: this turn.
        """
        if request.opens:
            request.opens, request.turn = False, max(request.turn, turn + 1)
            self._gaps += 1.0
            self._gaps_s += max(request.started_at - claim.at, 0.0)
            request.conversation = claim.conversation

    def add_claim(self, blocks: Sequence[H], claim: Claim, tag_of: Callable[[int], int]) -> bool:
        """Add a claim of another engine to those known of blocks; return whether it is new for the last one.

        A later claim of a conversation replaces its earlier one.

        Args:
            tag_of: returns the number of a conversation by which engines compare them.
        """
        get, put = self._uses.get, self._uses.put
        deepest = get(blocks[-1]) if blocks else None
        if deepest is None or self._with(deepest, claim, tag_of) is deepest:
            return False
        former: Use | None = None
        new: Use | None = None
        for piece in in_pieces(blocks):
            for block in piece:
                use = get(block)
                if use is not None:
                    if use is not former:
                        former, new = use, self._with(use, claim, tag_of)
                    if new is not use:
                        put(block, new)  # type: ignore[arg-type]  # set with `former`
        return True

    def _with(self, use: Use, claim: Claim, tag_of: Callable[[int], int]) -> Use:
        """Return a use with another engine's claim; the same one if that is known."""
        tag = tag_of(claim.conversation)
        for known in use.claims:
            if tag_of(known.conversation) == tag:
                if claim.at <= known.at:
                    return use
                claim = claim._replace(conversation=known.conversation)
                break
        claims = self._pooled(use.claims, claim)
        if claims == use.claims:
            return use
        only = use.only if use.only == claim.conversation else None
        return Use(use.at, use.turn, use.uses, use.place, only, claims, use.prompt)

    def use_of(self, block: H) -> Use | None:
        """Return a block's latest use; None: unknown."""
        return self._uses.get(block)

    def uses_of(self, chain: Sequence[H]) -> Iterator[tuple[int, int, Use]]:
        """Iterate over the parts of a chain with one latest use each: start, end and use. What is forgotten is left out."""
        get = self._uses.get
        start = depth = 0
        latest: Use | None = None
        for piece in in_pieces(chain):
            for block in piece:
                use = get(block)
                if use is not latest:
                    if latest is not None:
                        yield start, depth, latest
                    start, latest = depth, use
                depth += 1
        if latest is not None:
            yield start, depth, latest

    @property
    def watched(self) -> int:
        """Number of watched blocks."""
        return len(self._watch_of)

    def parts_now(self, request: TrackedRequest[H], length: int) -> Iterator[Span]:
        """Iterate over the parts of a request that ends now, and the part of the blocks behind them. From any thread.

        Requests that ended since its start have shared some of its blocks, or made other claims on them. Only the deepest
        block of each part is looked up. Those before it may be held by more conversations.

        Args:
            length: number of its computed blocks. What was not computed is left out: some parts may be empty.
        """
        get, own, prompt, end = self._uses.get, request.conversation, request.prompt, 0
        for part in request.known if request.seen else ():
            start, end, _, features, shared = part
            use = get(prompt[end - 1]) if features.gap else None
            if use is not None:
                shared = _if_shared(use, own)
            if shared is not part.use or end > length:
                part = span_of((min(start, length), min(end, length), 0, features, shared))
            yield part
        yield span_of((min(end, length), length, 0, NOTHING_KNOWN, None))

    def _gap_span(self, start: int, end: int, use: Use | None, now: float) -> Span:
        if use is None:
            return Span(start, end)
        uses = use.uses if self._used - use.place <= self._remembered else 0
        return Span(start, end, 0, seen(gap_class(now - use.at), level_of(uses + 1)), use)

    def finished(self, request: TrackedRequest[H], numbers: Sequence[int]) -> None:
        """Record a finished request's use of its blocks, and watch the deepest block of each class.

        Args:
            numbers: class of each of its known parts, and of the blocks behind them.
        """
        chain, prompt, now = request.blocks, request.prompt_blocks, request.at
        own = request.conversation
        if own is None:
            own = request.conversation = self._continued(chain) or next(_conversations)
        turn = min(request.turn, LAST_TURN)
        claim = Claim(own, request.log_odds, now, request.predicted)
        length = len(chain)
        self._used += self._size_of(chain)
        latest: Use | None = None
        spans = request.gap_spans
        behind = Span(spans[-1].end if spans else 0, length)
        ends = [part.end for part in request.known]
        of_span = [*(numbers[bisect_left(ends, span.end)] for span in spans), numbers[-1]]
        for span, number, following in zip((*spans, behind), of_span, (*of_span[1:], None), strict=True):
            start, end, use = span.start, min(span.end, length), span.use
            if end <= start:
                continue
            forgotten = not span.features.level  # an old block of level 0 has earlier uses that do not count
            latest = self._set_uses(chain[start:end], use, forgotten, claim, turn, prompt, latest)
            if use is not None:
                if number != following or end == length:
                    self._watch(chain[end - 1], number, now, newest=False)
            elif start < prompt:
                self._watch(chain[min(end, prompt) - 1], number, now, newest=True)
            elif prompt == request.old:
                self._watch(chain[end - 1], number, now, newest=True)

    def _continued(self, chain: Sequence[H]) -> int | None:
        """Return the only conversation that has used the deepest known block of a chain; None: several, or none is known."""
        for depth in range(len(chain), 0, -1):
            use = self._uses.get(chain[depth - 1])
            if use is not None:
                shared = depth < use.prompt or (self._extended.get(chain[depth - 1]) or 0) >= SHARED_FROM
                return None if shared else use.only
        return None

    def _set_uses(
        self, blocks: Sequence[H], known: Use | None, forgotten: bool, claim: Claim, turn: int, prompt: int, latest: Use | None
    ) -> Use | None:
        """Set and return the latest use of consecutive blocks.

        Args:
            known: their latest use when the request arrived; ``forgotten``: the number of uses until then does not count.
            claim: claim of the request's conversation.
            turn: turn of the request; ``prompt``: number of blocks of its prompt.
            latest: that of the blocks before them, which equal ones share.
        """
        get, put = self._uses.get, self._uses.put
        former, first = known, True
        for piece in in_pieces(blocks):
            for block in piece:
                use = get(block) or known  # of requests that have ended since
                if first or use is not former:
                    former, first = use, False
                    new = self._next_use(use, claim, turn, prompt, forgotten=forgotten and use is known)
                    if latest is None or not _equal(latest, new):
                        latest = new
                put(block, latest)  # type: ignore[arg-type]  # set at the first block
        return latest

    def _next_use(self, use: Use | None, claim: Claim, turn: int, prompt: int, *, forgotten: bool) -> Use:
        """Return the use after another one. ``forgotten``: the number of uses so far does not count."""
        if use is None:
            return Use(claim.at, turn, 1, self._used, claim.conversation, (claim,), prompt)
        uses = 1 if forgotten else min(use.uses + 1, MOST_USES)
        if use.only == claim.conversation:
            return Use(claim.at, use.turn, uses, self._used, use.only, (claim,), prompt)
        return Use(claim.at, use.turn, uses, self._used, None, self._pooled(use.claims, claim), prompt)

    def _pooled(self, claims: Sequence[Claim], new: Claim) -> tuple[Claim, ...]:
        """Return claims with a conversation's new one in place of its earlier one: the highest MOST_CLAIMS, in order."""
        gap = self.mean_gap_s
        found = [new, *(claim for claim in claims if claim.conversation != new.conversation)]
        found.sort(key=lambda claim: claim.log_odds * gap + claim.at, reverse=True)
        return tuple(found[:MOST_CLAIMS])

    def _watch(self, block: H, number: int, now: float, *, newest: bool) -> None:
        before = self._watch_of.pop(block, None)
        if before is not None:
            del before.blocks[block]
        watch = self._watches.get(number)
        if watch is None:
            watch = self._watches[number] = Watch(number, newest)
        self._watch_of[block] = watch
        watch.blocks[block] = now

    def _reused(self, watch: Watch[H], age: float) -> None:
        self.reused += 1
        if watch.newest:
            self._gaps += 1.0
            self._gaps_s += age
        interval = interval_of(age)
        self._reuses.setdefault(watch.number, [0.0] * INTERVALS)[interval] += 1.0
        at_risk = self._at_risk.setdefault(watch.number, [0.0] * INTERVALS)
        for i in range(interval + 1):
            at_risk[i] += 1.0

    # The counts, for the fit.

    def decay(self, now: float) -> Generator[None, None, None]:
        """Let the counts lose weight since the last call, and stop watching blocks older than the horizon; in steps."""
        if self._decayed_at is not None:
            kept = 0.5 ** ((now - self._decayed_at) / self._half_life_s)
            self._gaps *= kept
            self._gaps_s *= kept
            for counts in (self._reuses, self._at_risk):
                for done, (number, of_class) in enumerate(counts.items(), 1):
                    counts[number] = [count * kept for count in of_class]
                    if not done % PER_STEP:
                        yield
                yield
        self._decayed_at = now
        yield from self._expire(now)

    def counts(self, now: float) -> Generator[None, None, dict[int, tuple[Counts, Counts]]]:
        """Return reuses and blocks at risk [INTERVALS] by class, blocks that still wait included; in steps."""
        nothing = [0.0] * INTERVALS
        found = {number: (self._reuses.get(number, nothing), at_risk) for number, at_risk in self._at_risk.items()}
        for done, watch in enumerate((*self._watches.values(), *self._moved), 1):
            if watch.blocks:
                reuses, at_risk = found.get(watch.number, (nothing, nothing))
                found[watch.number] = reuses, _sum(at_risk, _waiting(watch, now, self._decays))
            if not done % PER_STEP:
                yield
        yield
        return found

    @property
    def gaps(self) -> tuple[float, float]:
        """The decayed number of gaps between turns of a conversation, and their sum in seconds."""
        return self._gaps, self._gaps_s

    def latest_uses(self, most: int) -> Generator[None, None, list[tuple[Use, list[H]]]]:
        """Return the latest uses of up to ``most`` blocks, the newest first, each with its blocks; in steps."""
        blocks_of: dict[int, tuple[Use, list[H]]] = {}
        for part in self._uses.parts():
            for done, (block, use) in enumerate(part.items(), 1):
                blocks_of.setdefault(id(use), (use, []))[1].append(block)
                if not done % PIECE:
                    yield
            yield
        newest = sorted(blocks_of.values(), key=lambda entry: entry[0].place, reverse=True)
        yield
        for number, (_, blocks) in enumerate(newest):
            most -= len(blocks)
            if most < 0:
                return newest[:number]
        return newest

    def extensions(self) -> Generator[None, None, list[tuple[H, int]]]:
        """Return how often blocks were the deepest known one of a longer prompt; in steps."""
        found: list[tuple[H, int]] = []
        for part in self._extended.parts():
            found += part.items()
            yield
        return found

    def restore_uses(self, uses: Sequence[tuple[Use, Sequence[H]]], extensions: Sequence[tuple[H, int]], used: int) -> None:
        """Go on from saved uses, the newest first.

        Args:
            extensions: as of :meth:`extensions`.
            used: as of :attr:`used`, when they were saved.
        """
        self._used = used
        for use, blocks in reversed(uses):
            for block in blocks:
                self._uses.put(block, use)
        for block, count in extensions:
            self._extended.put(block, count)

    @property
    def used(self) -> int:
        """Number of blocks that finished requests have used."""
        return self._used

    def restore(self, counts: Mapping[int, tuple[Counts, Counts]], gaps: tuple[float, float], age_s: float) -> None:
        """Go on from saved counts, which are ``age_s`` seconds old.

        Args:
            counts: reuses and blocks at risk [INTERVALS] by class, as of :meth:`counts`.
            gaps: as of :attr:`gaps`.
        """
        kept = 0.5 ** (age_s / self._half_life_s)
        self._gaps, self._gaps_s = kept * gaps[0], kept * gaps[1]
        for number, (reuses, at_risk) in counts.items():
            self._reuses[number] = [kept * count for count in reuses]
            self._at_risk[number] = [kept * count for count in at_risk]

    def move(self, numbers: Mapping[int, int]) -> None:
        """Add the counts and watched blocks of some classes to others, because the numbers get new meanings.

        Args:
            numbers: new by old.
        """
        for old, new in numbers.items():
            for counts in (self._reuses, self._at_risk):
                of_class = counts.pop(old, None)
                if of_class is not None:
                    counts[new] = _sum(counts[new], of_class) if new in counts else of_class
            watch = self._watches.pop(old, None)
            if watch is not None and watch.blocks:
                watch.number = new
                self._moved.append(watch)
        for watch in self._moved:
            watch.number = numbers.get(watch.number, watch.number)

    def _expire(self, now: float) -> Generator[None, None, None]:
        for done, watch in enumerate((*self._watches.values(), *self._moved), 1):
            if not done % PER_STEP:
                yield
            blocks, expired = watch.blocks, 0
            while blocks:
                block, last_use = next(iter(blocks.items()))
                if now - last_use < HORIZON_S:
                    break
                del blocks[block], self._watch_of[block]
                expired += 1
                if not expired % EXPIRED_PER_STEP:
                    yield
            if expired:
                at_risk = self._at_risk.get(watch.number, [0.0] * INTERVALS)
                self._at_risk[watch.number] = [
                    count + expired * left for count, left in zip(at_risk, self._left_at_horizon, strict=True)
                ]
        self._moved = [watch for watch in self._moved if watch.blocks]


def _equal(one: Use, other: Use) -> bool:
    """Return whether two uses by one request are equal."""
    same = (one.turn, one.uses, one.only) == (other.turn, other.uses, other.only)
    return same and one.claims == other.claims


def _if_shared(use: Use | None, own: int | None) -> Use | None:
    return None if use is None or (use.only is not None and use.only == own) else use


def _joined(spans: Sequence[Span], own: int) -> Sequence[Span]:
    """Return gap spans, joined where they will have the same features."""
    parts: list[Span] = []
    for span in spans:
        start, shared = span.start, _if_shared(span.use, own)
        if parts and parts[-1].features == span.features and parts[-1].use is shared:
            start = parts.pop().start
        parts.append(Span(start, span.end, 0, span.features, shared))
    return parts


def _waiting(watch: Watch[Any], now: float, decays: Sequence[float]) -> Counts:
    """Return how many watched blocks have reached each interval, each weighted by the time since it did, like the reuses.

    With full weights, blocks that have waited for long would outweigh the decayed reuses of their time.

    Args:
        decays: weight that a count keeps over each interval.
    """
    last_uses = list(watch.blocks.values())
    reached = [bisect_right(last_uses, now - edge) for edge in EDGES]
    older = float(reached[-1])
    found: Counts = []
    for i in range(INTERVALS - 1, -1, -1):
        here = reached[i] - reached[i + 1]
        older *= decays[i]
        # A block whose age is within an interval counts half in it.
        found.append(0.5 * here + older)
        older += here * decays[i] ** 0.5
    return found[::-1]


def add(total: tuple[Counts, Counts], pair: tuple[Sequence[float], Sequence[float]]) -> None:
    """Add reuses and blocks at risk to a total."""
    for sums, part in zip(total, pair, strict=True):
        sums[:] = _sum(sums, part)


def together(one: tuple[Counts, Counts], other: tuple[Counts, Counts]) -> tuple[Counts, Counts]:
    """Return the sum of two pairs of reuses and blocks at risk."""
    return _sum(one[0], other[0]), _sum(one[1], other[1])


def nothing() -> tuple[Counts, Counts]:
    """Return a total of no reuses and no blocks at risk [INTERVALS]."""
    return [0.0] * INTERVALS, [0.0] * INTERVALS


def _sum(one: Sequence[float], other: Sequence[float]) -> Counts:
    return list(map(operator.add, one, other))
