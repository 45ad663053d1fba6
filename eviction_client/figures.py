"""What a scorer shows of itself in an engine's /metrics, whatever the engine."""

from eviction_client.metrics import Values
from eviction_client.offer import STATES
from eviction_client.scorer import Scorer


def figures_of(scorer: Scorer) -> Values:
    """Return what :class:`eviction_client.metrics.EngineMetrics` shows of a scorer. From any thread."""
    asked = scorer.predictor.counters
    shadows = scorer.shadow_counters
    scored = scorer.scored
    ended = scored["prediction"] + scored["unanswered"]
    fates = ("asked", "answered", "late", "failed", "refused", "dropped", "rejected", "forgotten")
    accounts = [scorer.retained, *(tier.retained for tier in scorer.tiers)]
    values: Values = {("lpc_predictions", fate): getattr(asked, fate) for fate in fates}
    values |= {("lpc_requests_ended", by): scored[by] for by in ("prediction", "unanswered", "aborted")}
    values |= {("lpc_hints", hint): count for hint, count in scorer.hinted.items()}
    values |= {
        ("lpc_hinted_blocks", "granted"): sum(account.granted for account in accounts),
        ("lpc_hinted_blocks", "refused"): sum(account.refused for account in accounts),
        ("lpc_retained_blocks", ""): sum(account.held for account in accounts),
        ("lpc_fallback_share", ""): (scored["unanswered"] - scored["late"]) / ended if ended else 0.0,
        ("lpc_predictions_unread", ""): asked.unread,
        ("lpc_curves_refused", ""): asked.bad_curves,
        ("lpc_pooled_refused", ""): scorer.implausible,
        ("lpc_scheduler_seconds", ""): scorer.seconds,
        ("lpc_failures", ""): scorer.failures + asked.bugs + (0 if scorer.store is None else scorer.store.counters.bugs),
        ("lpc_stock_fallback", ""): 0.0,
        ("lpc_value_enabled", ""): float(scorer.trusting),
        ("lpc_guard_switches", ""): scorer.switches,
        ("lpc_guard_failures", ""): scorer.guard_failures,
        ("lpc_regret", ""): scorer.regret,
        ("lpc_ghost_blocks", "asked"): shadows.asked,
        ("lpc_ghost_blocks", "value"): shadows.credit_hits,
        ("lpc_ghost_blocks", "lru"): shadows.lru_hits,
        ("lpc_predictor_connected", ""): float(scorer.predictor.healthy),
        ("lpc_store_healthy", ""): float(scorer.store is not None and scorer.store.healthy),
    }
    values |= {("lpc_tokenizer_state", state): float(state == scorer.predictor.tokenizer_state) for state in STATES}
    for tier in scorer.tiers:
        values["lpc_tier_value_enabled", tier.name] = float(tier.trusting)
        for by, count in tier.evictions.items():
            values["lpc_tier_evictions", by] = values.get(("lpc_tier_evictions", by), 0.0) + count
    return values
