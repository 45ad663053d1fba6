"""A finished request, as the policy passes it to queues, tiers and the background."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from eviction_client.policy.features import NOTHING_KNOWN, Features
from eviction_client.policy.reuse_monitor import MEAN_GAP_S, UNKNOWN, Arrival
from eviction_client.policy.spans import Spans
from eviction_client.policy.uses import Use

H = TypeVar("H", bound=Hashable)

Home = Literal["pool", "tier"]


@dataclass(slots=True, eq=False)
class FinishedRequest(Generic[H]):
    """A finished request.

    Attributes:
        blocks: the computed blocks of its chain, from the start.
        prompt_blocks: number of these blocks that its prompt filled.
        at: time of the end, seconds since the epoch.
        spans: its blocks by their class in the queue; empty without blocks.
        newest: the class in the queue of its blocks used for the first time.
        arrival: what was known of its prompt.
        features: of its blocks used for the first time.
        parts: those of its prompt, as the policy knows them at its end, and that of the blocks behind them, with the combined
            classes; under a rule that needs others without classes, until the background has found them. Some may be empty.
        predicted: whether the sidecar predicted its continuation.
        done_from: depth from which its blocks are used no more.
        log_odds: of its continuation probability; without a prediction, of the share of such turns that were followed.
        mean_gap_s: mean gap between turns, for the decay of probabilities.
        session: digest of its conversation's name, the same in all engines; None: unknown.
        retain_s: seconds for which a hint retains all its blocks; 0: no hint.
        prompt_tokens: of its prompt; 0: unknown.
        token_ids: the prompt; empty for a prompt of embeddings.
        some_layers: tokens from the prompt's start that the cache had for some layers when it started; at most its hit: all.
        reads_cache: whether the engine may use the cache for it.
        tenant: digest of its cache salt; empty without one.
        home: the cache that is to keep its blocks, where pool and tier both hold them; None: both.
        by_rule: its parts with the classes of each rule; None before the background has found them.
    """

    request_id: Hashable
    blocks: Sequence[H]
    prompt_blocks: int
    at: float
    spans: Spans = field(default_factory=Spans)
    newest: int = 0
    arrival: Arrival = UNKNOWN
    features: Features = NOTHING_KNOWN
    parts: Spans = field(default_factory=Spans)
    predicted: bool = False
    done_from: int = 0
    log_odds: float = 0.0
    mean_gap_s: float = MEAN_GAP_S
    session: str | None = None
    retain_s: float = 0.0
    prompt_tokens: int = 0
    token_ids: Sequence[int] = ()
    some_layers: int = 0
    reads_cache: bool = True
    tenant: str = ""
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
        own = self.arrival.conversation
        highest = next((claim for claim in shared.claims if claim.conversation != own), None)
        if highest is None:
            return self.log_odds
        return max(self.log_odds, highest.log_odds - (self.at - highest.at) / self.mean_gap_s)
