"""What the plug-in in vLLM shows of itself in the engine's /metrics."""

from eviction_client.engines.vllm.free_queue import FlooredFreeQueue
from eviction_client.engines.vllm.hooks import Hooks
from eviction_client.observability.metrics import Values
from eviction_client.plugin_metrics import values_of_plugin


def values_of(hooks: Hooks) -> Values:
    """Return what :class:`eviction_client.observability.metrics.EngineMetrics` shows. From any thread."""
    values = values_of_plugin(hooks.plugin)
    waiting = hooks.steps.waiting
    values["lpc_warm_first", ""] = float(waiting is not None and waiting.warm_first)
    values["lpc_overtaken_tokens", ""] = 0.0 if waiting is None else waiting.overtaken
    values["lpc_overtaking", ""] = 0 if waiting is None else waiting.overtaking
    values["lpc_tier_stock_fallback", ""] = float(hooks.tiers.fallen_back)
    values |= {("lpc_waited_requests", what): count for what, count in hooks.keep.waited.requests.items()}
    values["lpc_waited_lost_tokens", ""] = hooks.keep.waited.lost_tokens
    preempted = hooks.preemptions
    values["lpc_preempted_requests", ""] = preempted.requests
    held, least, again = preempted.held, preempted.least, preempted.again
    values |= {("lpc_preempted_tokens", which): n for which, n in (("held", held), ("least", least), ("again", again))}
    for tier in hooks.loads:
        if (chooser := tier.chooser) is not None:
            values |= {("lpc_tier_choices", f"{tier.name},{choice}"): count for choice, count in chooser.chosen.items()}
            values["lpc_tier_gained_seconds", tier.name] = chooser.stock.gained
            values["lpc_tier_token_seconds", f"{tier.name},load"] = chooser.transfers.token_s
            if (prefill_s := chooser.prefill_s()) is not None:
                values["lpc_tier_token_seconds", f"{tier.name},compute"] = prefill_s
        values["lpc_tier_loads_all", tier.name] = float(chooser is None or chooser.loads_all)
    if hooks.queue is not None:
        values["lpc_queue_runs", ""] = hooks.queue.num_runs
    if isinstance(hooks.queue, FlooredFreeQueue):
        values |= {("lpc_tenant_blocks", digest): floor.held for digest, floor in hooks.queue.floors.items()}
    return values
