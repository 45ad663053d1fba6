"""Status and metrics of the controller, as JSON and for Prometheus. Counts only: no keys, tokens or names of conversations."""

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from eviction_client.policy.rules import RULES
from lpc_apps.lmcache.loop import Loop
from lpc_apps.lmcache.tier_cache import TierCache

PREFIX: Final = "lpc_lmcache"
Family: TypeAlias = type[CounterMetricFamily] | type[GaugeMetricFamily]

OF_TIERS: Final[dict[str, tuple[Family | None, Callable[[TierCache], int]]]] = {
    "capacity_bytes": (GaugeMetricFamily, lambda cache: cache.capacity),
    "used_bytes": (GaugeMetricFamily, lambda cache: cache.used),
    "chunks": (None, len),
    "deleted_bytes": (CounterMetricFamily, lambda cache: cache.deleted),
    "lost_bytes": (CounterMetricFamily, lambda cache: cache.lost),
}
"""Numbers of each tier of a node by name: the kind of metric, None in the status only; and how to read it."""
OF_ALL: Final[dict[str, tuple[Family | None, Callable[[Loop], int]]]] = {
    "returning_turns": (CounterMetricFamily, lambda loop: loop.service.counters.turns),
    "memory_chunks": (CounterMetricFamily, lambda loop: loop.service.counters.memory_chunks),
    "disk_chunks": (CounterMetricFamily, lambda loop: loop.service.counters.disk_chunks),
    "known_chunks": (None, lambda loop: len(loop.service.conversations)),
    "unread_stores": (CounterMetricFamily, lambda loop: loop.service.conversations.unread),
    "reuses": (CounterMetricFamily, lambda loop: loop.service.policy.reused),
    "reuse_classes": (None, lambda loop: loop.service.policy.fits.seen),
    "dropped_events": (CounterMetricFamily, lambda loop: loop.dropped),
    "lost_events": (CounterMetricFamily, lambda loop: loop.lost),
}
"""Numbers of all nodes together, likewise."""


def status(loop: Loop, *, sidecar: bool) -> dict[str, Any]:
    """Return all metrics. ``sidecar``: whether it answers."""
    return {
        "tiers": [
            {
                "tier": location.tier,
                "node": location.node,
                **{name: read(cache) for name, (_, read) in OF_TIERS.items()},
                "rule": cache.rule if location.tier == "l1" else None,  # nothing is deleted from disk
                "ghost_chunks": {"asked": cache.ghosts.asked, **cache.ghosts.hits},
            }
            for location, cache in loop.service.caches.items()
        ],
        **{name: read(loop) for name, (_, read) in OF_ALL.items()},
        "failures": loop.failures,
        "sidecar": sidecar,
    }


class _Collector:
    def __init__(self, now: dict[str, Any]) -> None:
        self._now = now

    def collect(self) -> Iterator[Metric]:
        now = self._now
        for name, (kind, _) in OF_TIERS.items():
            if kind is not None:
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
        for name, (one, _) in OF_ALL.items():
            if one is not None:
                yield one(f"{PREFIX}_{name}", name.replace("_", " "), value=now[name])
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
