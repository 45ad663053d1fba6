"""What the plug-in in vLLM shows of itself in the engine's /metrics."""

from collections.abc import Sequence
from typing import Final, Protocol

from eviction_client.credit_queue import BUCKETS
from eviction_client.metrics import Values
from eviction_client.offer import STATES
from eviction_client.scorer import Scorer

QUANTILES: Final = (0.0, 0.1, 0.5, 0.9, 1.0)
"""Of the latest credits given that are shown."""


class Queue(Protocol):
    """A free queue or evictor."""

    @property
    def num_runs(self) -> int:
        """Entries of its index."""

    @property
    def evictions(self) -> Sequence[int]:
        """Blocks evicted by :data:`BUCKETS`."""


class Attached(Protocol):
    """Hooks, of vLLM's V1 or V0."""

    scorer: Scorer
    raised: int

    @property
    def queue(self) -> Queue | None:
        """Ours; None in shadow mode."""


def values_of(hooks: Attached) -> Values:
    """Return what :class:`eviction_client.metrics.EngineMetrics` shows. From any thread."""
    scorer = hooks.scorer
    asked = scorer.predictor.counters
    shadows = scorer.shadow_counters
    scored = scorer.scored
    ended = scored["prediction"] + scored["unanswered"]
    fates = ("asked", "answered", "late", "failed", "refused", "dropped", "rejected", "forgotten")
    values: Values = {("lpc_predictions", fate): getattr(asked, fate) for fate in fates}
    values |= {("lpc_requests_scored", by): count for by, count in scored.items()}
    values |= {
        ("lpc_fallback_share", ""): (scored["unanswered"] - scored["late"]) / ended if ended else 0.0,
        ("lpc_late_answers", ""): scored["late"],
        ("lpc_predictions_unread", ""): asked.unread,
        ("lpc_credit_refused", "absent"): asked.no_credit,
        ("lpc_credit_refused", "grid"): asked.bad_grid,
        ("lpc_credit_refused", "length"): asked.bad_length,
        ("lpc_credit_refused", "value"): asked.bad_value,
        ("lpc_pooled_raises", ""): hooks.raised,
        ("lpc_pooled_refused", ""): scorer.implausible,
        ("lpc_scheduler_seconds", ""): scorer.seconds,
        ("lpc_failures", ""): scorer.failures,
        ("lpc_stock_fallback", ""): 0.0,
        ("lpc_trusting", ""): float(scorer.trusting),
        ("lpc_guard_switches", ""): scorer.switches,
        ("lpc_lifetime_seconds", ""): scorer.lifetime.seconds if hooks.queue is not None else scorer.shadow_lifetime,
        ("lpc_regret", ""): scorer.regret,
        ("lpc_shadow_blocks", "asked"): shadows.asked,
        ("lpc_shadow_blocks", "credit"): shadows.credit_hits,
        ("lpc_shadow_blocks", "lru"): shadows.lru_hits,
        ("lpc_predictor_connected", ""): float(scorer.predictor.healthy),
        ("lpc_store_healthy", ""): float(scorer.store is not None and scorer.store.healthy),
    }
    values |= {("lpc_tokenizer_state", state): float(state == scorer.predictor.tokenizer_state) for state in STATES}
    if given := sorted(scorer.credits.copy()):
        values |= {("lpc_credit_seconds", f"{q:g}"): given[int(q * (len(given) - 1))] for q in QUANTILES}
    if hooks.queue is not None:
        values["lpc_queue_runs", ""] = hooks.queue.num_runs
        bounds = (*(f"{bound:g}" for bound in BUCKETS), "+Inf")
        values |= {("lpc_evictions", bound): n for bound, n in zip(bounds, hooks.queue.evictions, strict=True)}
    return values
