"""The record of one request, which engine, policy, queues, tiers and metrics share from its start to its end, and its parts.

- :class:`Features`, whose combinations are the reuse classes;
- :class:`Use`, the latest use of blocks, with the conversations' claims on them;
- :class:`Span`, consecutive blocks of which the cache knows the same. A prompt's spans are found when it arrives, with its gaps
  and uses; those of a request when it ends, with all features and the reuse class. The lists for the queues have them joined
  where the classes are equal;
- :class:`TrackedRequest`, the record itself.
"""

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, partial
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

GAPS: Final = (10.0, 60.0, 300.0, 1200.0)
"""Bounds of the gap classes, seconds between a block's last two uses. Gap class 0: the block was used for the first time."""
GAP_CLASSES: Final = len(GAPS) + 2

NEW_TOKENS: Final = (1024, 4096, 16384)
"""Bounds of the new-token groups: tokens at the end of a prompt that the cache has not seen before. They do not depend on the
rule: an evicted block is not new. A long new part is a new conversation or a pasted document, a short one a chat message or a
tool's result."""
NEW_GROUPS: Final = len(NEW_TOKENS) + 1

TURNS: Final = (2, 3, 4, 6)
"""First turns of the turn groups after the first one: 1, 2, 3, 4 and 5, 6 and more."""
TURN_GROUPS: Final = len(TURNS) + 1
LAST_TURN: Final = TURNS[-1]
"""Later turns count as this one."""

REPLY_ENDS: Final = 4
"""Kinds of reply end, numbered from 0; kind 0 collects the infrequent ones."""

LEVELS: Final = 4
"""Levels by the number of uses: 1, 2 and 3, 4 to 7, 8 and more. A fifth costs Mooncake 0.2 points at 1% and 0.1 at 8%."""
MOST_USES: Final = 2 ** (LEVELS - 1)
"""More uses count as this many."""

TENANTS: Final = 10
"""Tenants by number: 0 without a cache salt, 1 for all the infrequent ones."""

CATEGORIES: Final = 8
"""Categories that callers name, by number: 0 without one, and for all the infrequent ones."""

MOST_ODDS: Final = 3
"""Log-odds of the last groups on both sides of even odds. Groups are whole numbers, counted from 1; 0: unknown."""


class Features(NamedTuple):
    """The features of blocks. They are the key of a reuse class.

    Attributes:
        gap: gap class of the blocks' last two uses.
        new: new-token group of the request.
        turn: turn group of the request, as the cache recognises it.
        reply_end: kind of its reply's end.
        tenant: number of its tenant.
        level: level by the number of the blocks' uses, this one included.
        group: the sidecar's group of the request; 0: none, or old blocks. These are not split by it: that triples the number of
            classes, and changes hits on Mooncake and Chatbot Arena by 0.1 points.
        odds: group of the log-odds of the continuation probability now, the highest of the conversations that hold the blocks.
            Without it in the classes of old blocks, a good predictor is wasted: 33% hits instead of 44%
            (`docs/explanation/value-and-guard.md`).
        category: number of the category that its caller named.
    """

    gap: int = 0
    new: int = 0
    turn: int = 0
    reply_end: int = 0
    tenant: int = 0
    level: int = 0
    group: int = 0
    odds: int = 0
    category: int = 0


NOTHING_KNOWN: Final = Features()


@cache
def seen(gap: int, level: int) -> Features:
    """Return what is known of old blocks when a prompt with them arrives: gap class and level."""
    return Features(gap=gap, level=level)


def gap_class(seconds: float) -> int:
    """Return the gap class of blocks whose last two uses lie this far apart."""
    return 1 + bisect_right(GAPS, seconds)


def turn_group(turn: int) -> int:
    """Return the group of a turn, counted from 1."""
    return bisect_right(TURNS, turn)


def new_group(tokens: int) -> int:
    """Return the group of a number of new tokens."""
    return bisect_right(NEW_TOKENS, tokens)


def level_of(uses: int) -> int:
    """Return the level of blocks with this many uses, at least one."""
    return min(uses.bit_length(), LEVELS) - 1


def odds_group(log_odds: float | None) -> int:
    """Return the group of the log-odds of a continuation probability; None: unknown."""
    return 0 if log_odds is None else round(min(max(log_odds, -MOST_ODDS), MOST_ODDS)) + MOST_ODDS + 1


def log_odds_of(group: int) -> float:
    """Return the log-odds in the middle of a group, which is not 0."""
    return float(group - MOST_ODDS - 1)


K = TypeVar("K", bound=Hashable)


class Claim(NamedTuple):
    """A conversation's continuation probability at the time of its latest turn.

    Attributes:
        conversation: its number.
        log_odds: log-odds of the probability.
        at: seconds.
        predicted: whether the sidecar predicted it; else it is the share of such turns that were followed.
    """

    conversation: int
    log_odds: float
    at: float
    predicted: bool


class Use:
    """The latest use of some blocks of a chain. All these blocks share the object.

    Attributes:
        at: seconds.
        turn: turn that made the blocks, at most LAST_TURN.
        uses: number of uses, at most MOST_USES.
        place: number of blocks that all requests had used after this one.
        only: number of the only conversation that has used the blocks; None: several have.
        claims: claims of these conversations, the highest first; never empty.
        predicted: whether the sidecar predicted one of the claims.
        prompt: number of blocks of the prompt with which they were used. Who branches off before its end is another
            conversation.
    """

    __slots__ = ("at", "claims", "only", "place", "predicted", "prompt", "turn", "uses")

    def __init__(
        self, at: float, turn: int, uses: int, place: int, only: int | None, claims: tuple[Claim, ...], prompt: int = 0
    ) -> None:
        self.at = at
        self.turn = turn
        self.uses = uses
        self.place = place
        self.only = only
        self.claims = claims
        self.prompt = prompt
        self.predicted = any(claim.predicted for claim in claims)


class Uses(Protocol[K]):
    """A bounded table of the latest uses, such as `eviction_client.recent.Recent`."""

    def get(self, key: K, /) -> Use | None:
        """Return a block's latest use; None: unknown."""

    def put(self, key: K, value: Use, /) -> None:
        """Set a block's latest use."""

    def parts(self) -> Iterator[dict[K, Use]]:
        """Iterate over the parts of the table."""


class Span(NamedTuple):
    """The blocks of a chain from depth ``start`` to before depth ``end``.

    Attributes:
        reuse_class: number of the class, once the request has ended.
        features: until then the gap and the level alone.
        use: the latest use of the blocks, if one is known; of a request's parts: if other conversations have used them.
    """

    start: int
    end: int
    reuse_class: int = 0
    features: Features = NOTHING_KNOWN
    use: Use | None = None

    def at(self, start: int, end: int) -> "Span":
        """Return the same of other blocks."""
        return span_of((start, end, self.reuse_class, self.features, self.use))

    def of_class(self, reuse_class: int) -> "Span":
        """Return the same blocks in another class."""
        return span_of((self.start, self.end, reuse_class, self.features, self.use))


span_of: Final = partial(tuple.__new__, Span)
"""Returns a span of a tuple, in half the time of `Span`: an engine waits for a request's spans."""


class Spans(list[Span]):
    """The spans of a chain, from its start: each starts where the one before it ends. Methods return new lists."""

    __slots__ = ()

    def joined(self) -> Self:
        """Return the spans with neighbours of one class joined and empty ones left out. A joined one is the last one's."""
        found = type(self)()
        since, latest = 0, None
        for span in self:
            start, end, reuse_class, features, use = span
            if start < end:
                if reuse_class == latest:
                    found[-1] = span_of((since, end, reuse_class, features, use))
                else:
                    found.append(span)
                    since, latest = start, reuse_class
        return found

    def shortened(self, length: int) -> Self:
        """Return the spans of a chain's first ``length`` blocks; some may be empty."""
        if not self or self[-1].end <= length:
            return self
        return type(self)(span.at(min(span.start, length), min(span.end, length)) for span in self)

    def cut(self, depth: int, reuse_class: int) -> Self:
        """Return the spans with another class from ``depth`` on."""
        if not self or depth >= self[-1].end:
            return self
        rest = self[-1].at(depth, self[-1].end).of_class(reuse_class)
        return type(self)((*self.shortened(depth), rest)).joined()

    def of_classes(self, numbers: Iterable[int]) -> Self:
        """Return the same blocks in other classes."""
        return type(self)(span.of_class(number) for span, number in zip(self, numbers, strict=True))


H = TypeVar("H", bound=Hashable)

Home = Literal["pool", "tier"]


class UnderLru(NamedTuple):
    """What LRU would hold of a prompt when it arrives, in blocks from the start.

    Attributes:
        held: that the ghost caches hold.
        since: that were used since LRU is in force: LRU holds of them what the engine holds.
        known: that ended requests have used since the cache was last emptied. What the engine hits behind them belongs to
            requests that still run.
    """

    held: int
    since: int
    known: int

    def depth(self, engine: int) -> int:
        """Return how many blocks LRU holds. ``engine``: how many the engine holds."""
        if engine < self.since or engine > self.known:
            return engine
        return max(self.held, self.since)


@dataclass(slots=True, eq=False)
class TrackedRequest(Generic[H]):
    """A request from its start, or from when blocks are retained for its start, to its end.

    Three writers fill it, one after the other, so no lock is needed:

    1. the engine's adapter, in the scheduler's thread: all up to ``cached``, when the request starts;
    2. the background: all up to ``conversation``, when it looks at the prompt, soon after. It sets ``conversation`` last, so
       the scheduler's thread, which reads that first, sees all of it or none;
    3. the scheduler's thread at the end: all the others. What it reads of the engine's request it reads here, where a failure
       concerns no other request. From then on only the background writes ``by_rule`` and ``parts``, and tiers their ``home``.

    The end may come before the background has looked at the prompt, or while it does. Then ``seen`` is false, and the blocks
    count as used for the first time.

    Attributes:
        prompt: its full blocks, which must not change afterwards.
        started_at: seconds since the epoch.
        kept: whether it waits, and its blocks are retained from now on.
        cached: tokens of its prompt in the cache or a tier when its prefill starts; None: it has not started.

        gap_spans: spans of its prompt's full blocks, from the start: each has one latest use.
        known: the gap spans, joined where they will have the same features.
        size: number of its prompt's full blocks.
        old: depth of its first new block; ``new_blocks``: number of new blocks.
        turn: its turn, from 1.
        under_lru: what LRU would hold of its prompt when the engine looks for it in its cache.
        opens: whether it continues no conversation that this cache has seen.
        conversation: number of its conversation, a new one if it continues none; None: the prompt has not been looked at.
            The store of the fleet may show later that it continues one of another engine.

        blocks: the computed blocks of its chain, from the start, which must not change afterwards.
        prompt_blocks: number of these blocks that its prompt filled.
        at: time of the end, seconds since the epoch.
        session: digest of its conversation's name, the same in all engines; None: unknown.
        tenant: digest of its cache salt; empty without one.
        category: digest of the category that its caller named; empty without one.
        token_ids: the prompt, which must not change afterwards; empty for a prompt of embeddings.
        prompt_tokens: number of tokens in its prompt; 0: unknown.
        some_layers: tokens from the prompt's start that the cache had for some layers when it started; at most its hit: all.
        reads_cache: whether the engine may use the cache for it.
        resendable: whether the token ids alone make the engine name the prompt's blocks as it did.
        seen: whether the prompt had been looked at then.
        spans: its blocks by their class in the queue; empty without blocks.
        newest: the class in the queue of its blocks used for the first time.
        features: features of its blocks used for the first time.
        parts: those of its prompt, as the policy knows them at its end, and that of the blocks behind them, with the combined
            classes; under a rule that needs others without classes, until the background has found them. Some may be empty.
        predicted: whether the sidecar predicted its continuation.
        log_odds: log-odds of its continuation probability; without a prediction, of the share of such turns that were followed.
        mean_gap_s: mean gap between turns, for the decay of probabilities.
        done_from: depth from which its blocks are used no more.
        retain_s: seconds for which a hint retains all its blocks; 0: no hint.
        follows: whether the runs of its free blocks are noted.
        runs: these runs, each with the name of its deepest block.
        home: the cache that is to keep its blocks, where pool and tier both hold them; None: both.
        by_rule: its parts with the classes of each rule; None before the background has found them.
    """

    request_id: Hashable
    prompt: Sequence[H] = ()
    _: KW_ONLY
    started_at: float = 0.0
    kept: bool = False
    cached: int | None = None

    gap_spans: Sequence[Span] = ()
    known: Sequence[Span] = ()
    size: int = 0
    old: int = 0
    new_blocks: int = 0
    turn: int = 1
    under_lru: UnderLru | None = None
    opens: bool = True
    conversation: int | None = None

    blocks: Sequence[H] = ()
    prompt_blocks: int = 0
    at: float = 0.0
    session: str | None = None
    tenant: str = ""
    category: str = ""
    token_ids: Sequence[int] = ()
    prompt_tokens: int = 0
    some_layers: int = 0
    reads_cache: bool = True
    resendable: bool = False
    seen: bool = False
    spans: Spans = field(default_factory=Spans)
    newest: int = 0
    features: Features = NOTHING_KNOWN
    parts: Spans = field(default_factory=Spans)
    predicted: bool = False
    log_odds: float = 0.0
    mean_gap_s: float = 0.0
    done_from: int = 0
    retain_s: float = 0.0
    follows: bool = False
    runs: list[tuple[Any, H]] = field(default_factory=list)
    home: Home | None = None
    by_rule: dict[str, Spans] | None = None

    def pooled(self, shared: Use | None) -> float:
        """Return the highest log-odds at the request's end of the conversations that have used some blocks.

        LPC 3.5 pools by the current probability; 3.4.2 lets log-odds fall by the age over the mean gap. The request's
        log-odds replace its conversation's earlier ones.

        Args:
            shared: latest use of the blocks, if other conversations have used them.
        """
        if shared is None:
            return self.log_odds
        own = self.conversation
        highest = next((claim for claim in shared.claims if claim.conversation != own), None)
        if highest is None:
            return self.log_odds
        return max(self.log_odds, highest.log_odds - max(self.at - highest.at, 0.0) / self.mean_gap_s)

    def unsee(self) -> None:
        """Forget what the background found in the prompt, because the classes of the blocks were chosen without it."""
        self.gap_spans = self.known = ()
        self.size = self.old = self.new_blocks = 0
        self.turn, self.conversation = 1, None
