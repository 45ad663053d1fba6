"""What lies behind an engine's cache: tiers of memory and disk, the ways from them, and what is fetched beforehand."""

from lpc.simulator.tiers.hierarchy import Behind, Tiers, behind
from lpc.simulator.tiers.spec import PrefetchSpec, Tiering, TierSpec
from lpc.simulator.tiers.tier import TierFigures

__all__ = ["Behind", "PrefetchSpec", "TierFigures", "TierSpec", "Tiering", "Tiers", "behind"]
