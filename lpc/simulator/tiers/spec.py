"""What is said of tiers and prefetch before a run: as text on the command line, as plain values in a run."""

import math
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

from lpc.simulator.amounts import SimulationError, parse_capacity, parse_share, tokens

TierPolicy = Literal["lru", "value", "oracle"]
PrefetchKind = Literal["none", "arrival", "predicted", "oracle"]
StoredWhen = Literal["evicted", "computed"]
TIER_POLICIES: Final[tuple[TierPolicy, ...]] = get_args(TierPolicy)
PREFETCHES: Final[tuple[PrefetchKind, ...]] = get_args(PrefetchKind)
STORED_WHEN: Final[tuple[StoredWhen, ...]] = get_args(StoredWhen)
TOKENS_S: Final = (200_000.0, 50_000.0)
"""Where none is said, of the nearest tier and of those behind: 26 GB/s (PCIe 4.0 x16) and 6.5 GB/s (NVMe), 128 KiB a token."""
LATENCY_S: Final = 0.0
NAMES: Final = ("memory", "disk", "remote")
"""Of tiers without a name, nearest first."""


@dataclass(frozen=True)
class TierSpec:
    """One tier of each engine.

    Attributes:
        name: in tables.
        capacity: tokens, or before a run a share of the working set.
        tokens_s: loaded from it per second, by all requests and prefetches together.
        latency_s: seconds until the first block of a load is there.
    """

    name: str
    capacity: int | float
    tokens_s: float = TOKENS_S[0]
    latency_s: float = LATENCY_S

    def of(self, working_set: int) -> "TierSpec":
        """Return the same with its capacity in tokens."""
        return replace(self, capacity=tokens(self.capacity, working_set))

    @property
    def tokens(self) -> int:
        """The capacity, once it is in tokens."""
        assert isinstance(self.capacity, int)
        return self.capacity


@dataclass(frozen=True)
class PrefetchSpec:
    """What is brought from slower tiers into the nearest one before it is asked for.

    Attributes:
        kind: `none`; `arrival`: when a request arrives that has to wait, as LMCache's lookup does; `predicted`: that, and when
            the retention value of a conversation's blocks is above the price of room; `oracle`: that, and shortly before each
            next turn.
        tokens_s: predicted ones may move so many tokens a second in the mean.
        useless: share of their tokens that may have been moved in vain.
    """

    kind: PrefetchKind = "none"
    tokens_s: float = 5_000.0
    useless: float = 0.4

    @property
    def label(self) -> str:
        """How tables name it."""
        if self.kind != "predicted":
            return self.kind
        return f"predicted {_short(self.tokens_s)}/s, {100 * self.useless:.3g}%"


@dataclass(frozen=True)
class Tiering:
    """What is behind each engine's cache, nearest first.

    Attributes:
        specs: of the tiers; none: evicted blocks are gone.
        policy: by which every one of them evicts.
        prefetch: into the nearest one.
        exclusive: a block that is loaded leaves its tier.
        stored: `evicted`: when a nearer one gives it up; `computed`: when it is computed, in the only tier, as vLLM offloads.
        guard, invert: as `lpc.simulator.policy.PolicySettings`.
    """

    specs: tuple[TierSpec, ...] = ()
    policy: TierPolicy = "lru"
    prefetch: PrefetchSpec = field(default_factory=PrefetchSpec)
    exclusive: bool = False
    stored: StoredWhen = "evicted"
    guard: bool = True
    invert: bool = False


def parse_tier(text: str, place: int) -> TierSpec:
    """Read ``[NAME=]CAPACITY[:TOKENS_PER_SECOND[:LATENCY_MS]]``; ``place`` is the tier's, from 0.

    Raises SimulationError.
    """
    name, found, rest = text.rpartition("=")
    parts = rest.split(":")
    if len(parts) > 3 or (found and not name.isidentifier()):
        raise SimulationError(
            f"{text!r:.60} is not a tier: give [NAME=]CAPACITY[:TOKENS_PER_SECOND[:LATENCY_MS]], such as disk=50%:50K:5"
        )
    rate: float = TOKENS_S[min(place, 1)]
    if len(parts) > 1:
        rate = parse_capacity(parts[1])
        if isinstance(rate, float):
            raise SimulationError(f"a tier's rate is tokens per second (50K), not a share: {text!r:.60}")
    try:
        latency = float(parts[2]) / 1000 if len(parts) > 2 else LATENCY_S
    except ValueError:
        latency = math.nan
    if not 0 <= latency < 3600:
        raise SimulationError(f"a tier's latency is milliseconds from 0: {text!r:.60}")
    return TierSpec(name or NAMES[min(place, len(NAMES) - 1)], parse_capacity(parts[0]), float(rate), latency)


def parse_tiers(texts: "list[str] | tuple[str, ...]") -> tuple[TierSpec, ...]:
    """Read tiers, nearest first. Raises SimulationError."""
    tiers = tuple(parse_tier(text, place) for place, text in enumerate(texts))
    if len({tier.name for tier in tiers}) < len(tiers):
        raise SimulationError(f"two tiers are named alike: {', '.join(tier.name for tier in tiers)}")
    return tiers


def parse_tier_policies(text: str) -> list[TierPolicy]:
    """Read names with commas. Raises SimulationError."""
    names = [part.strip() for part in text.split(",")]
    known = [policy for name in names for policy in TIER_POLICIES if policy == name]
    if len(known) < len(names):
        raise SimulationError(f"{text!r:.40} are not policies of a tier: choose of {', '.join(TIER_POLICIES)}")
    return known


def parse_prefetches(kinds: str, rates: str, useless: str) -> list[PrefetchSpec]:
    """Read names with commas; `predicted` once for each budget of tokens per second and of useless ones.

    Raises SimulationError.
    """
    names = [part.strip() for part in kinds.split(",")]
    found: list[PrefetchSpec] = []
    for name in names:
        kind = next((kind for kind in PREFETCHES if kind == name), None)
        if kind is None:
            raise SimulationError(f"{name!r:.40} is no way to prefetch: choose of {', '.join(PREFETCHES)}")
        if kind != "predicted":
            found.append(PrefetchSpec(kind))
            continue
        for rate in rates.split(","):
            tokens_s = parse_capacity(rate.strip())
            if isinstance(tokens_s, float):
                raise SimulationError(f"a prefetch budget is tokens per second (5K), not a share: {rate!r:.40}")
            found += [PrefetchSpec(kind, float(tokens_s), parse_share(share.strip())) for share in useless.split(",")]
    return found


def _short(tokens_s: float) -> str:
    return f"{tokens_s / 1000:g}K" if tokens_s >= 1000 else f"{tokens_s:g}"
