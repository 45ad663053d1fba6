"""The record of one request, which engine, policy, queues, tiers and metrics share from its start to its end."""

from collections.abc import Hashable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Generic, Literal, NamedTuple, TypeVar

from eviction_client.policy.features import NOTHING_KNOWN, Features
from eviction_client.policy.spans import Span, Spans
from eviction_client.policy.uses import Use

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
        conversation: number of its conversation, a new one if it continues none; None: the prompt has not been looked at.

        blocks: the computed blocks of its chain, from the start, which must not change afterwards.
        prompt_blocks: number of these blocks that its prompt filled.
        at: time of the end, seconds since the epoch.
        session: digest of its conversation's name, the same in all engines; None: unknown.
        tenant: digest of its cache salt; empty without one.
        token_ids: the prompt, which must not change afterwards; empty for a prompt of embeddings.
        prompt_tokens: number of tokens in its prompt; 0: unknown.
        some_layers: tokens from the prompt's start that the cache had for some layers when it started; at most its hit: all.
        reads_cache: whether the engine may use the cache for it.
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
    conversation: int | None = None

    blocks: Sequence[H] = ()
    prompt_blocks: int = 0
    at: float = 0.0
    session: str | None = None
    tenant: str = ""
    token_ids: Sequence[int] = ()
    prompt_tokens: int = 0
    some_layers: int = 0
    reads_cache: bool = True
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
        return max(self.log_odds, highest.log_odds - (self.at - highest.at) / self.mean_gap_s)

    def unsee(self) -> None:
        """Forget what the background found in the prompt, because the classes of the blocks were chosen without it."""
        self.gap_spans = self.known = ()
        self.size = self.old = self.new_blocks = 0
        self.turn, self.conversation = 1, None
