"""What an application knows better than any predictor, sent with a request, and how much of a cache it may decide.

Anyone who may use the API can send a hint. So an operator enables hints (``LPC_HINTS``), and two rules bound them:

- *Retain*: the blocks that a hint keeps take at most a share of each cache (:class:`Retained`). A hint beyond it is ignored.
- *Done*: only blocks that no other conversation has used go first (:class:`Owners`). Shared ones rank as without the hint.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Generic, TypeVar

from eviction_client.score import Keys
from eviction_client.stores.base import BlockHash

SWEEP_S: Final = 1.0
"""Shortest time between two searches for retentions that are over: one takes milliseconds in a large account."""

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Hints:
    """The hints of one request.

    Attributes:
        retain_s: rank the blocks as if they had been used this many seconds later; >= 0.
        done: the conversation or branch is over.
    """

    retain_s: float = 0.0
    done: bool = False

    @classmethod
    def of(cls, arguments: Mapping[str, Any] | None) -> "Hints":
        """Read ``lpc_retain_seconds`` and ``lpc_done``. A value that cannot be read is not a hint."""
        if not arguments:
            return NO_HINTS
        done = arguments.get("lpc_done", False)
        hints = cls(
            _seconds(arguments.get("lpc_retain_seconds")),
            done.strip().lower() in ("1", "true", "yes") if isinstance(done, str) else bool(done),
        )
        return NO_HINTS if hints == NO_HINTS else hints


NO_HINTS: Final = Hints()


@dataclass(frozen=True, slots=True)
class Asked:
    """What a finished request's hints ask of each cache that holds its blocks.

    Attributes:
        retain_s: seconds within the operator's limit; 0: nothing.
        own: with ``done`` the blocks that no other conversation has used; None: the request is not done.
        own_from: their first place in the request's chain.
    """

    retain_s: float = 0.0
    own: frozenset[BlockHash] | None = None
    own_from: int = 0

    def __bool__(self) -> bool:
        return self is not NOTHING


NOTHING: Final = Asked()


class Owners:
    """Which blocks one conversation alone has used. Not thread-safe.

    A conversation is known by its session. Without one each request is a conversation of its own, so that a request owns only
    the blocks that it was the first to use.

    Args:
        blocks: the latest so many blocks are remembered, at most twice as many.
    """

    _SHARED: Final = object()

    def __init__(self, blocks: int) -> None:
        self._most = max(blocks, 1)
        self._users: dict[BlockHash, object] = {}
        self._earlier: dict[BlockHash, object] = {}

    def used(self, session: str | None, chain: Sequence[BlockHash]) -> int:
        """Note that a request has used a chain; return the place from which on nobody else has used its blocks."""
        user: object = session or object()
        users, earlier, shared = self._users, self._earlier, self._SHARED
        own_from = 0
        for place, block in enumerate(chain, 1):
            before = users.get(block) or earlier.get(block, user)
            if before == user:
                users[block] = user
            else:
                users[block] = shared
                own_from = place
        if len(users) > self._most:
            self._users, self._earlier = {}, users
        return own_from


class Retained(Generic[B]):
    """The blocks of one cache that a hint retains: at most a share of it. Not thread-safe.

    A block counts until its time is over or :meth:`release` is called, so that the account never counts too few.

    Args:
        limit: blocks (or tokens, or bytes) that hints may retain.
        rises: a later use does not lower a block's place in this cache's order: it counts until its time is over or it is gone.

    Attributes:
        held: blocks that count now, at most ``limit``.
        granted, refused: blocks that hints asked for so far.
    """

    def __init__(self, limit: float, *, rises: bool = False) -> None:
        self.limit = limit
        self._rises = rises
        self.held = 0
        self.granted = 0
        self.refused = 0
        self._until: dict[Hashable, tuple[float, int]] = {}
        self._swept_at = -math.inf

    def hold(self, sizes: Mapping[Any, int], until: float, now: float) -> bool:
        """Retain all of these blocks until a time, seconds since the epoch, or none of them; return whether it did."""
        if not self.fits(sizes, now):
            self.refused += sum(sizes.values())
            return False
        known = self._until
        for block, size in sizes.items():
            counted_until, counted = known.get(block, (until, 0))
            known[block] = max(until, counted_until), max(size, counted)
            self.held += max(size - counted, 0)
        self.granted += sum(sizes.values())
        return True

    def fits(self, sizes: Mapping[Any, int], now: float) -> bool:
        """Return whether these blocks can be retained."""
        if abs(now - self._swept_at) >= SWEEP_S:
            self._sweep(now)
        known = self._until
        more = sum(max(size - known.get(block, (0.0, 0))[1], 0) for block, size in sizes.items())
        return self.held + more <= self.limit

    def release(self, blocks: Iterable[Hashable]) -> None:
        """Count these no longer: they are gone, or have a place in the order that no hint has given them."""
        if self._until:
            for block in blocks:
                before = self._until.pop(block, None)
                if before is not None:
                    self.held -= before[1]

    def clear(self) -> None:
        """Count nothing."""
        self._until.clear()
        self.held = 0

    def placed(
        self,
        blocks: Sequence[B],
        keys: Keys,
        asked: Asked,
        now: float,
        number: Callable[[B], Hashable],
        name: Callable[[B], bytes],
    ) -> Iterator[tuple[Sequence[B], Keys]]:
        """Walk freed blocks in parts, each with the keys that the hints of their request leave it.

        Args:
            number: of a block, unique in this cache.
            name: the hash of a block's content.
        """
        numbers = [number(block) for block in blocks]
        if asked.retain_s and self.hold(dict.fromkeys(numbers, 1), keys.t_last + asked.retain_s, now):
            yield blocks, keys.retained_for(asked.retain_s)
            return
        if not self._rises:
            self.release(numbers)
        own = asked.own or frozenset()
        for mine, part in groupby(blocks, lambda block: name(block) in own):
            yield list(part), Keys.done(now) if mine else keys

    def _sweep(self, now: float) -> None:
        self._swept_at = now
        over = [block for block, (until, _) in self._until.items() if until <= now]
        self.release(over)


def _seconds(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number if 0.0 < number < math.inf else 0.0
