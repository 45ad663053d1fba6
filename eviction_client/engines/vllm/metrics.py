"""What the plug-in in vLLM shows of itself in the engine's /metrics."""

from eviction_client.engines.vllm.hooks import Hooks
from eviction_client.engines.vllm.queue import BUCKETS
from eviction_client.metrics import Values


def values_of(hooks: Hooks) -> Values:
    """Return what :class:`eviction_client.metrics.EngineMetrics` shows. From any thread."""
    scorer = hooks.scorer
    asked = scorer.predictor.counters
    shadows = scorer.shadow_counters
    ended = scorer.scored["prediction"] + scorer.scored["prior"]
    fates = ("asked", "answered", "late", "failed", "dropped", "rejected", "forgotten")
    values: Values = {("lpc_predictions", fate): getattr(asked, fate) for fate in fates}
    values |= {("lpc_requests_scored", by): count for by, count in scorer.scored.items()}
    values |= {
        ("lpc_fallback_share", ""): scorer.scored["prior"] / ended if ended else 0.0,
        ("lpc_pooled_raises", ""): hooks.raised,
        ("lpc_scheduler_seconds", ""): scorer.seconds,
        ("lpc_failures", ""): scorer.failures,
        ("lpc_beta", ""): scorer.beta,
        ("lpc_regret", ""): scorer.regret,
        ("lpc_shadow_blocks", "asked"): shadows.asked,
        ("lpc_shadow_blocks", "trusting"): shadows.trusting_hits,
        ("lpc_shadow_blocks", "lru"): shadows.lru_hits,
        ("lpc_predictor_connected", ""): float(scorer.predictor.healthy),
        ("lpc_store_healthy", ""): float(scorer.store is not None and scorer.store.healthy),
    }
    if hooks.queue is not None:
        values["lpc_queue_runs", ""] = hooks.queue.num_runs
        bounds = (*(f"{bound:g}" for bound in BUCKETS), "+Inf")
        values |= {("lpc_evictions", bound): n for bound, n in zip(bounds, hooks.queue.evictions, strict=True)}
    return values
