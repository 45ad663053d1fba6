"""The tiers of one engine together: where a prompt's blocks are loaded from, how long that takes, what is prefetched."""

from collections.abc import Container, Sequence
from typing import Any, Final, Protocol

from lpc.simulator.cache import BlockCache
from lpc.simulator.tiers.figures import TierFigures
from lpc.simulator.tiers.link import Link
from lpc.simulator.tiers.offload import Offload
from lpc.simulator.tiers.order import order_of
from lpc.simulator.tiers.prefetch import Prefetcher, prefetcher_of
from lpc.simulator.tiers.spec import Tiering
from lpc.simulator.tiers.tier import Tier
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
        return Tiers(tiering, workload, cache, cache.capacity, figures)
    (spec,) = tiering.specs
    if tiering.policy == "credit":
        return Offload.with_credit(spec, workload.block_tokens, figures, cache.policy)
    return Offload(spec, workload.block_tokens, figures)


class Tiers:
    """The tiers behind one cache.

    What the cache evicts goes into the nearest tier, what that gives up into the next, and from the last it is gone. A block
    that is loaded stays where it was, as with vLLM's CPU tier, unless tiers are exclusive; on its way from a slower tier it
    passes the nearer ones' links, and does not stay there: the request that loads it holds it in the cache, from which it comes
    into the nearest tier in its time. Writing takes no time and no bandwidth here.

    Args:
        cache: what it holds is not fetched.
        capacity: blocks of the cache.
    """

    def __init__(
        self,
        tiering: Tiering,
        workload: Workload,
        cache: Container[int],
        capacity: int,
        figures: TierFigures,
    ) -> None:
        size = workload.block_tokens
        self.tiers: Final[list[Tier]] = []
        whole = capacity
        for spec in tiering.specs:
            blocks = max(spec.tokens // size, 1)
            whole += blocks
            order = order_of(tiering.policy, blocks, whole, workload, guard=tiering.guard, invert=tiering.invert)
            self.tiers.append(Tier(spec.name, blocks, order, Link(spec.tokens_s, spec.latency_s), exclusive=tiering.exclusive))
            figures.loaded.setdefault(spec.name, 0)
        self._size = size
        self._figures = figures
        self._workload = workload
        self._prefetcher: Prefetcher | None = prefetcher_of(tiering, workload, self.tiers, cache, self.move_in, figures)

    def advance(self, now: float) -> None:
        """Let time pass until now: prefetches go on. Called before anything that happens now."""
        if self._prefetcher is not None:
            self._prefetcher.advance(now)

    def arrive(self, turn: Turn, now: float) -> None:
        """Learn that a request has come."""
        for tier in self.tiers:
            tier.order.arrive(turn, now)
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
        self.move_in(contents, now, None)

    def move_in(self, contents: Sequence[int], now: float, until: float | None) -> None:
        """Take blocks into the nearest tier. ``until``: as of `Tier.store`."""
        for place, tier in enumerate(self.tiers):
            if not contents:
                break
            contents = tier.store(contents, now, until if place == 0 else None)
            if place == 0 and self._prefetcher is not None:
                self._prefetcher.gone(contents)

    def end(self, turn: Turn, now: float) -> None:
        """Learn that a request has ended; its blocks are not in use any more."""
        for tier in self.tiers:
            tier.order.note(turn, turn.all_contents, now)
        if self._prefetcher is not None:
            self._prefetcher.end(turn)
