"""The tiers of one engine together: where a prompt's blocks are loaded from, how long that takes, what is prefetched."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from lpc.simulator.cache import BlockCache
from lpc.simulator.policies.value import Reuse
from lpc.simulator.reuse_classes import ReuseClasses, SidecarClasses
from lpc.simulator.tiers.offload import Offload
from lpc.simulator.tiers.order import ByValue, Knowing, Order, Values
from lpc.simulator.tiers.prefetch import prefetcher_of
from lpc.simulator.tiers.spec import Tiering
from lpc.simulator.tiers.tier import Link, Tier, TierFigures
from lpc.simulator.workload import Turn, Workload


class Behind(Protocol):
    """What is behind one engine's cache. Times are seconds of the workload."""

    def advance(self, now: float) -> None:
        """Let time pass until now. Called before anything that happens now."""

    def arrive(self, turn: Turn, now: float) -> None:
        """Learn that a request has come."""

    def wait(self, turn: Turn, contents: Sequence[int], now: float) -> None:
        """Learn that a request has to wait for blocks of the cache. ``contents``: those it could be served from."""

    def load(self, turn: Turn, contents: Sequence[int], start: int, now: float, *, counted: bool) -> tuple[int, float]:
        """Serve a request that starts, whose prompt the cache has up to place ``start``, with what follows without a gap.

        Returns:
            How many blocks, and the seconds until they are in the cache.
        """

    def store(self, contents: Sequence[int], now: float) -> None:
        """Take what the cache has evicted for it."""

    def end(self, turn: Turn, now: float) -> None:
        """Learn that a request has ended; its blocks are not in use any more."""


def behind(tiering: Tiering, workload: Workload, cache: BlockCache[Any], figures: TierFigures) -> Behind:
    """Return what is behind a cache."""
    if tiering.stored == "evicted":
        return Tiers(tiering, workload, cache, figures)
    (spec,) = tiering.specs
    if tiering.policy == "value":
        return Offload.by_value(spec, workload.block_tokens, figures, cache.policy)
    return Offload(spec, workload.block_tokens, figures)


class Tiers:
    """The tiers behind one cache.

    What the cache evicts goes into the nearest tier, what that gives up into the next, and from the last it is gone. A block
    that is loaded stays where it was, as with vLLM's CPU tier, unless tiers are exclusive; on its way from a slower tier it
    passes the nearer ones' links, and does not stay there: the request that loads it holds it in the cache, from which it comes
    into the nearest tier in its time. Writing takes no time and no bandwidth here.

    Orders by value, and predicted prefetches, use the reuse classes of the cache's policy. If it has none, the tiers learn
    classes with a sidecar.

    Args:
        cache: what it holds is not fetched.
    """

    def __init__(self, tiering: Tiering, workload: Workload, cache: BlockCache[Any], figures: TierFigures) -> None:
        size = workload.block_tokens
        self.tiers: Final[list[Tier]] = []
        self._learnt: ReuseClasses | None = None
        self._values: list[Values] = []
        classes: ReuseClasses | None = None
        if tiering.policy == "value" or tiering.prefetch.kind == "predicted":
            if isinstance(cache.policy, Reuse):
                classes = cache.policy.reuse
            else:
                classes = self._learnt = SidecarClasses(cache.capacity, workload, invert=tiering.invert)
        room = cache.capacity
        for spec in tiering.specs:
            blocks = max(spec.tokens // size, 1)
            room += blocks
            order = Knowing() if tiering.policy == "oracle" else Order()
            if classes is not None and (tiering.policy == "value" or not self._values):
                self._values.append(Values(classes, room, guard=tiering.guard))
                if tiering.policy == "value":
                    order = ByValue(self._values[-1])
            self.tiers.append(Tier(spec.name, blocks, order, Link(spec.tokens_s, spec.latency_s), exclusive=tiering.exclusive))
            figures.loaded.setdefault(spec.name, 0)
        self._size = size
        self._figures = figures
        self._workload = workload
        nearest = self._values[0] if self._values else None
        self._prefetcher = prefetcher_of(tiering.prefetch, workload, self.tiers, cache, self.move_in, figures, nearest)

    def advance(self, now: float) -> None:
        """Let time pass until now: prefetches go on. Called before anything that happens now."""
        if self._prefetcher is not None:
            self._prefetcher.advance(now)

    def arrive(self, turn: Turn, now: float) -> None:
        """Learn that a request has come."""
        del now
        if self._prefetcher is not None:
            self._prefetcher.arrive(turn)

    def wait(self, turn: Turn, contents: Sequence[int], now: float) -> None:
        """Learn that a request has to wait for blocks of the cache. ``contents``: those it could be served from."""
        if self._prefetcher is not None:
            self._prefetcher.wait(turn, contents, now)

    def load(self, turn: Turn, contents: Sequence[int], start: int, now: float, *, counted: bool) -> tuple[int, float]:
        """Load a prompt's blocks from place ``start`` on that are in any tier without a gap.

        Returns:
            How many, and the seconds until they are in the cache.
        """
        if self._learnt is not None:
            self._learnt.start(turn, now)
        taken: list[list[int]] = [[] for _ in self.tiers]
        loaded = 0
        for content in contents[start:]:
            place = next((place for place, tier in enumerate(self.tiers) if content in tier), None)
            if place is None:
                break
            taken[place].append(content)
            loaded += 1
        done = now if self._prefetcher is None else self._prefetcher.loaded(turn, taken[0], now)
        if loaded:
            through = 0  # blocks that pass a link: its own tier's and those of all behind it
            for tier, mine in zip(reversed(self.tiers), reversed(taken), strict=True):
                through += len(mine)
                if through:
                    done = max(done, tier.link.load(through * self._size, now))
                tier.load(mine, now)
        if counted:
            for tier, mine in zip(self.tiers, taken, strict=True):
                self._figures.loaded[tier.name] += len(mine) * self._size
            self._figures.waited_s += done - now
        return loaded, done - now

    def store(self, contents: Sequence[int], now: float) -> None:
        """Take what the cache has evicted."""
        self.move_in(contents, now, False)

    def move_in(self, contents: Sequence[int], now: float, soon: bool) -> None:
        """Take blocks into the nearest tier. ``soon``: as of `Tier.store`."""
        for place, tier in enumerate(self.tiers):
            if not contents:
                break
            contents = tier.store(contents, now, soon=soon and place == 0)
            if place == 0 and self._prefetcher is not None:
                self._prefetcher.gone(contents)

    def end(self, turn: Turn, now: float) -> None:
        """Learn that a request has ended; its blocks are not in use any more."""
        if self._learnt is not None:
            self._learnt.finish(turn, now)
        for values in self._values:
            values.note(now)
        for tier in self.tiers:
            tier.order.note(turn)
        if self._prefetcher is not None:
            self._prefetcher.end(turn, now)
