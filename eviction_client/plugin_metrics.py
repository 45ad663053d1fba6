"""Values of all plug-in metrics, for any engine."""

from eviction_client.observability.metrics import Values
from eviction_client.plugin import Plugin
from eviction_client.policy.rules import RULES
from eviction_client.transport.tokenizer_upload import STATES

FATES = ("answered", "late", "failed", "refused", "forgotten")


def values_of_plugin(plugin: Plugin) -> Values:
    """Return what :class:`eviction_client.observability.metrics.EngineMetrics` shows of a plug-in. From any thread."""
    asked, ghosts = plugin.predictor.counters, plugin.policy.ghosts
    completed = plugin.ended["prediction"] + plugin.ended["unanswered"]
    accounts = [plugin.retained, *(tier.retained for tier in plugin.tiers)]
    values: Values = {("lpc_predictions", fate): getattr(asked, fate) for fate in FATES}
    values |= {("lpc_prediction_failures", cause): count for cause, count in asked.causes.items()}
    values |= {("lpc_requests_ended", by): count for by, count in plugin.ended.items()}
    values |= {("lpc_hints", hint): count for hint, count in plugin.hinted.items()}
    values |= {
        ("lpc_hinted_blocks", "granted"): sum(account.granted for account in accounts),
        ("lpc_hinted_blocks", "refused"): sum(account.refused for account in accounts),
        ("lpc_retained_blocks", ""): sum(account.held for account in accounts),
        ("lpc_fallback_share", ""): plugin.ended["unanswered"] / completed if completed else 0.0,
        ("lpc_predictions_unread", ""): asked.unread,
        ("lpc_pooled_raises", ""): 0 if plugin.pool is None else plugin.pool.raised,
        ("lpc_pooled_refused", ""): 0 if plugin.pool is None else plugin.pool.implausible,
        ("lpc_scheduler_seconds", ""): plugin.seconds,
        ("lpc_failures", ""): plugin.failures,
        ("lpc_stock_fallback", ""): 0.0,
        ("lpc_lru_forced", ""): float(plugin.lru_forced),
        ("lpc_reuse_classes", ""): plugin.policy.fits.seen,
        ("lpc_reuses", ""): plugin.policy.reused,
        ("lpc_refits", ""): plugin.policy.fits.count,
        ("lpc_guard_switches", ""): ghosts.guard.switches,
        ("lpc_guard_failures", ""): plugin.learner.guard_failures,
        ("lpc_ghost_blocks", "asked"): ghosts.asked,
        ("lpc_predictor_connected", ""): float(plugin.predictor.healthy),
        ("lpc_store_healthy", ""): float(plugin.pool is not None and plugin.pool.store.healthy),
    }
    in_force = "lru" if plugin.settings.shadow else plugin.rule
    values |= {("lpc_rule", rule): float(rule == in_force) for rule in RULES}
    values |= {("lpc_ghost_blocks", rule): hits for rule, hits in ghosts.hits.items()}
    values |= {("lpc_advantage", rule): blocks for rule, blocks in ghosts.guard.advantage.items()}
    misses = plugin.misses
    values["lpc_hit_tokens", ""] = misses.hits.needed
    values["lpc_repeated_prefill", ""] = misses.repeated_prefill.share
    values |= {("lpc_prompt_tokens", source): tokens for source, tokens in misses.tokens.items()}
    values |= {("lpc_hit_by_one_tokens", who): tokens for who, tokens in misses.hit_by_one.items()}
    values |= {("lpc_evicted_tokens", unused): tokens for unused, tokens in misses.unused.items()}
    values |= {("lpc_evicted_blocks", cache): blocks for cache, blocks in misses.followed.items()}
    values |= {("lpc_missed_blocks", size): blocks for size, blocks in misses.sizes.missed.items()}
    values |= {("lpc_changed_tokens", f"{change},{before}"): tokens for (change, before), tokens in misses.changed.items()}
    for digest, tenant in list(misses.tenants.items()):
        values |= {("lpc_tenant_prompt_tokens", f"{digest},{source}"): tokens for source, tokens in tenant.tokens.items()}
        values |= {("lpc_tenant_ghost_blocks", f"{digest},{cache}"): blocks for cache, blocks in tenant.sampled.items()}
    values |= {("lpc_tokenizer_state", state): float(state == plugin.predictor.tokenizer_state) for state in STATES}
    for tier in plugin.tiers:
        in_force = "lru" if plugin.lru_forced else tier.rule
        values |= {("lpc_tier_rule", f"{tier.name},{rule}"): float(rule == in_force) for rule in RULES}
        for by, count in tier.evictions.items():
            values["lpc_tier_evictions", by] = values.get(("lpc_tier_evictions", by), 0.0) + count
    return values
