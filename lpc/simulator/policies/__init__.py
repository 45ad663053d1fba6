"""Eviction policies by name. To add one: write its class in a module here, register it, import the module below."""

from lpc.simulator.policies import arc, bounds, classic, guarded, hazard, lpc, lru, retention, s3fifo
from lpc.simulator.policies.base import REGISTRY, Policy, PolicySettings

__all__ = [
    "REGISTRY",
    "Policy",
    "PolicySettings",
    "arc",
    "bounds",
    "classic",
    "guarded",
    "hazard",
    "lpc",
    "lru",
    "retention",
    "s3fifo",
]
