"""What `lpc simulate` is told of tiers behind the cache."""

from dataclasses import dataclass

from lpc.simulator.amounts import SimulationError
from lpc.simulator.tiers.spec import (
    STORED_WHEN,
    PrefetchSpec,
    StoredWhen,
    TierPolicy,
    TierSpec,
    parse_prefetches,
    parse_tier_policies,
    parse_tiers,
)

Variant = tuple[TierPolicy, PrefetchSpec]


@dataclass(frozen=True)
class TierOptions:
    """As on the command line.

    Attributes:
        tiers: nearest first; none: evicted blocks are gone.
        policies, prefetches, rates, useless: lists with commas; every combination is run.
        exclusive: a block that is loaded leaves its tier.
        stores: `evicted` or `computed`.
    """

    tiers: tuple[str, ...] = ()
    policies: str = "lru"
    prefetches: str = "none"
    rates: str = "5K"
    useless: str = "40%"
    exclusive: bool = False
    stores: str = "evicted"

    def specs(self) -> tuple[TierSpec, ...]:
        """Return the tiers. Raises SimulationError."""
        return parse_tiers(self.tiers)

    def stored(self) -> StoredWhen:
        """Return when blocks go into a tier. Raises SimulationError."""
        for when in STORED_WHEN:
            if when == self.stores:
                return when
        raise SimulationError(f"{self.stores!r:.40} is nothing that a tier stores: choose of {', '.join(STORED_WHEN)}")

    def variants(self) -> list[Variant]:
        """Return the tiers' policies and ways to prefetch to be run. Raises SimulationError."""
        policies = parse_tier_policies(self.policies)
        prefetches = parse_prefetches(self.prefetches, self.rates, self.useless)
        if not self.tiers and (
            policies != ["lru"] or prefetches != [PrefetchSpec()] or self.exclusive or self.stored() == "computed"
        ):
            raise SimulationError("there is no tier behind the cache: name one with --tier, such as --tier memory=5%")
        if len(self.tiers) < 2 and prefetches != [PrefetchSpec()]:
            raise SimulationError(
                "prefetches go from a slower tier into the nearest one: name two, such as --tier memory=5% --tier disk=50%"
            )
        if self.stored() == "computed" and (len(self.tiers) != 1 or "oracle" in policies or self.exclusive):
            raise SimulationError(
                "--tier-stores computed is vLLM's CPU offloading: one --tier, --tier-policy lru or value, no --exclusive-tiers"
            )
        return [(policy, prefetch) for policy in policies for prefetch in prefetches]
