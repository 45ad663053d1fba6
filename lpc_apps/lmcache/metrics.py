"""Status and metrics of the controller, as JSON and for Prometheus. Counts only: no keys, tokens or names of conversations."""

from collections.abc import Iterator
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from eviction_client.policy.rules import RULES
from lpc_apps.lmcache.loop import Loop

PREFIX: Final = "lpc_lmcache"
TIER_GAUGES: Final = ("capacity_bytes", "used_bytes")
TIER_COUNTERS: Final = ("deleted_bytes", "lost_bytes")
COUNTERS: Final = (
    "returning_turns",
    "memory_chunks",
    "disk_chunks",
    "unread_stores",
    "dropped_events",
    "lost_events",
    "reuses",
)


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
                "rule": cache.rule if location.tier == "l1" else None,  # nothing is deleted from disk
                "ghost_chunks": {"asked": cache.ghosts.asked, **cache.ghosts.hits},
                "deleted_bytes": cache.deleted,
                "lost_bytes": cache.lost,
            }
            for location, cache in service.caches.items()
        ],
        "returning_turns": service.counters.turns,
        "memory_chunks": service.counters.memory_chunks,
        "disk_chunks": service.counters.disk_chunks,
        "known_chunks": len(service.conversations),
        "unread_stores": service.conversations.unread,
        "reuses": service.policy.reused,
        "reuse_classes": service.policy.fits.seen,
        "dropped_events": loop.dropped,
        "lost_events": loop.lost,
        "failures": loop.failures,
        "sidecar": sidecar,
    }


class _Collector:
    def __init__(self, now: dict[str, Any]) -> None:
        self._now = now

    def collect(self) -> Iterator[Metric]:
        now = self._now
        for name in (*TIER_GAUGES, *TIER_COUNTERS):
            kind = CounterMetricFamily if name in TIER_COUNTERS else GaugeMetricFamily
            family = kind(f"{PREFIX}_{name}", name, labels=("tier", "node"))
            for row in now["tiers"]:
                family.add_metric([row["tier"], row["node"]], row[name])
            yield family
        rules = GaugeMetricFamily(f"{PREFIX}_rule", "1 for the rule that orders memory, else 0", labels=("node", "rule"))
        ghosts = CounterMetricFamily(
            f"{PREFIX}_ghost_chunks",
            "sampled chunks of prompts: all (asked), and those that the ghost cache under each rule hit",
            labels=("node", "cache"),
        )
        for row in now["tiers"]:
            if row["rule"] is not None:
                for rule in RULES:
                    rules.add_metric([row["node"], rule], rule == row["rule"])
                for cache, chunks in row["ghost_chunks"].items():
                    ghosts.add_metric([row["node"], cache], chunks)
        yield from (rules, ghosts)
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
