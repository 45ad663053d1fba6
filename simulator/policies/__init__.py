"""Eviction policies by name. To add one: write its class in a module here, register it, import the module below."""

from simulator.policies import lru
from simulator.policies.base import REGISTRY, Policy, PolicySettings

__all__ = ["REGISTRY", "Policy", "PolicySettings", "lru"]
