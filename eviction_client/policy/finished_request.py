"""A finished request, as the policy passes it to queues, tiers and the background."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from eviction_client.policy.features import NO_FACTS, Facts, Features
from eviction_client.policy.reuse_monitor import MEAN_GAP_S, UNKNOWN, Arrival, Part, Use, pooled
from eviction_client.policy.spans import ClassSpan

H = TypeVar("H", bound=Hashable)

Home = Literal["pool", "tier"]

NO_PARTS: Final = (Part(0, 0, 0, None),)


@dataclass(slots=True, eq=False)
class FinishedRequest(Generic[H]):
    """A finished request.

    Attributes:
        blocks: the computed blocks of its chain, from the start.
        prompt_blocks: number of these blocks that its prompt filled.
        at: time of the end, seconds since the epoch.
        spans: the reuse classes of its blocks, from the chain's start; empty without blocks.
        newest: the reuse class of its blocks used for the first time.
        facts: features of the request.
        arrival: what was known of its prompt.
        parts: of its prompt, with the conversations that share them at its end, and that of the blocks behind them.
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
        features: of its parts; empty before :meth:`find_features`.
        classes: of the same parts, by rule; None before the background has found them.
    """

    request_id: Hashable
    blocks: Sequence[H]
    prompt_blocks: int
    at: float
    spans: Sequence[ClassSpan] = ()
    newest: int = 0
    facts: Facts = NO_FACTS
    arrival: Arrival = UNKNOWN
    parts: Sequence[Part] = NO_PARTS
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
    features: Sequence[Features] = ()
    classes: Mapping[str, Sequence[ClassSpan]] | None = None

    def find_features(self) -> None:
        """Set the features."""
        new, turn, reply_end, tenant, group, _ = self.facts
        length = len(self.blocks)
        self.features = [
            Features(min(end, length), gap, new, turn, reply_end, tenant, level, group, self.pooled(shared))
            for end, gap, level, shared in self.parts
        ]

    def pooled(self, shared: Use | None) -> float:
        """Return the highest log-odds of the conversations that have used some blocks; see `reuse_monitor.pooled`."""
        return pooled(shared, self.arrival.conversation, self.log_odds, self.at, self.mean_gap_s)
