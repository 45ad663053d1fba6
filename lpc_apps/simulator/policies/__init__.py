"""Eviction policies by name. To add one, write a class with `@register` in a module here, and import the module below."""

from lpc_apps.simulator.policies import bounds, classic, lpc, lru, plugin, turn_ttl, workload_aware
from lpc_apps.simulator.policy import REGISTRY, EvictionPolicy, PolicySettings

__all__ = [
    "REGISTRY",
    "EvictionPolicy",
    "PolicySettings",
    "bounds",
    "classic",
    "lpc",
    "lru",
    "plugin",
    "turn_ttl",
    "workload_aware",
]
