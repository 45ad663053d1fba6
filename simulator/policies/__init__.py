"""Eviction policies by name. To add one: write its class in a module here, register it, import the module below."""

from simulator.policies import arc, classic, lru, retention, s3fifo
from simulator.policies.base import REGISTRY, Policy, PolicySettings

__all__ = ["REGISTRY", "Policy", "PolicySettings", "arc", "classic", "lru", "retention", "s3fifo"]
