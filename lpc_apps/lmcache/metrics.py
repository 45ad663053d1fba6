"""Status and metrics of the controller, as JSON and for Prometheus. Counts only: no keys, tokens or names of conversations."""

from collections.abc import Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from lpc_apps.lmcache.loop import Loop

PREFIX: Final = "lpc_lmcache"
TIER_GAUGES: Final = ("capacity_bytes", "used_bytes", "value_enabled")
TIER_COUNTERS: Final = ("deleted_bytes", "lost_bytes")
FETCH_GAUGES: Final = ("budget_bytes", "held_bytes", "waiting_bytes", "needed_probability")
FETCH_COUNTERS: Final = ("prefetched_bytes", "used_bytes", "useless_bytes", "refused")
COUNTERS: Final = ("returning_turns", "memory_chunks", "disk_chunks", "unread_stores", "dropped_events", "reuses")


def status(loop: Loop, *, sidecar: bool) -> dict[str, Any]:
    """Return all metrics. ``sidecar``: whether it answers."""
    service = loop.service
    return {
        "tiers": [
            {
                "tier": location.tier,
                "node": location.node,
                "capacity_bytes": cache.capacity,
                "used_bytes": cache.used,
                "chunks": len(cache),
                "value_enabled": cache.queue.value_enabled and cache.queue.tables is not None,
                "price": cache.price,
                "deleted_bytes": cache.deleted,
                "lost_bytes": cache.lost,
            }
            for location, cache in service.caches.items()
        ],
        "prefetch": [
            {
                "node": node,
                "budget_bytes": budget.bytes,
                "held_bytes": budget.held,
                "waiting_bytes": budget.waiting,
                "prefetched_bytes": budget.prefetched,
                "used_bytes": budget.used,
                "useless_bytes": budget.useless,
                "refused": budget.refused,
                "needed_probability": round(budget.needed, 4),
            }
            for node, budget in service.fetching.budgets.items()
        ],
        "returning_turns": service.counters.turns,
        "memory_chunks": service.counters.memory_chunks,
        "disk_chunks": service.counters.disk_chunks,
        "known_chunks": len(service.conversations),
        "unread_stores": service.conversations.unread,
        "reuses": service.classes.reuses,
        "reuse_classes": service.classes.fitted,
        "dropped_events": loop.dropped,
        "failures": loop.failures,
        "sidecar": sidecar,
    }


class _Collector:
    def __init__(self, now: dict[str, Any]) -> None:
        self._now = now

    def collect(self) -> Iterator[Metric]:
        now = self._now
        for rows, labels, subsystem, gauges, counters in (
            (now["tiers"], ("tier", "node"), "", TIER_GAUGES, TIER_COUNTERS),
            (now["prefetch"], ("node",), "prefetch_", FETCH_GAUGES, FETCH_COUNTERS),
        ):
            for name in (*gauges, *counters):
                kind = CounterMetricFamily if name in counters else GaugeMetricFamily
                family = kind(f"{PREFIX}_{subsystem}{name}", name, labels=labels)
                for row in rows:
                    family.add_metric([row[label] for label in labels], row[name])
                yield family
        for name in COUNTERS:
            yield CounterMetricFamily(f"{PREFIX}_{name}", name.replace("_", " "), value=now[name])
        yield GaugeMetricFamily(f"{PREFIX}_predictor_connected", "1 while the sidecar answers", value=now["sidecar"])
        failures = CounterMetricFamily(f"{PREFIX}_failures", "calls and ticks that failed", labels=("what",))
        for what, count in now["failures"].items():
            failures.add_metric((what,), count)
        yield failures


def exposition(now: dict[str, Any]) -> bytes:
    """Return the result of :func:`status` in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Collector(now))
    return generate_latest(registry)
