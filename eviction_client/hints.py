"""Hints that applications send with requests, and the limits on their effect.

Anyone who may use the API can send a hint. So an operator enables hints (``LPC_HINTS_SHARE``), and two rules bound them:

- *Retain*: the blocks that a hint keeps take at most a share of each cache (:class:`Retained`). A hint beyond it is ignored.
- *Done*: only blocks that no other conversation has used go first (:class:`Owners`). Shared ones rank as without the hint.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from eviction_client.stores.base import BlockHash

SWEEP_S: Final = 1.0
"""Shortest interval between searches for expired retentions, which take milliseconds in a large account."""

B = TypeVar("B")


MAX_RETAIN_S: Final = 3600.0
"""Longest retention that a hint may ask for."""


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
        """Read ``lpc_retain_seconds`` and ``lpc_done``. Invalid values are ignored."""
        if not arguments:
            return NO_HINTS
        done = arguments.get("lpc_done", False)
        hints = cls(
            _seconds(arguments.get("lpc_retain_seconds")),
            done.strip().lower() in ("1", "true", "yes") if isinstance(done, str) else bool(done),
        )
        return NO_HINTS if hints == NO_HINTS else hints


NO_HINTS: Final = Hints()


class Owners:
    """Blocks that only one conversation has used. Not thread-safe.

    The session identifies a conversation. Without a session each request is its own conversation and owns only the blocks that
    it was the first to use.

    Args:
        blocks: number of recent blocks to store, at most twice as many.
    """

    _SHARED: Final = object()

    def __init__(self, blocks: int) -> None:
        self._most = max(blocks, 1)
        self._users: dict[BlockHash, object] = {}
        self._earlier: dict[BlockHash, object] = {}

    def used(self, session: str | None, chain: Sequence[BlockHash]) -> int:
        """Record that a request has used a chain; return the depth from which no other conversation has used it."""
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
    """The blocks of one cache that hints retain, up to a limit. Not thread-safe.

    A block counts until its time is over or :meth:`release` is called, so the account never counts too few.

    Args:
        limit: blocks (or tokens, or bytes) that hints may retain.

    Attributes:
        held: blocks retained now, at most ``limit``.
        granted, refused: blocks of hints so far.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.held = 0
        self.granted = 0
        self.refused = 0
        self._until: dict[Hashable, tuple[float, int]] = {}
        self._swept_at = -math.inf

    def hold(self, sizes: Mapping[Any, int], until: float, now: float) -> bool:
        """Retain all of these blocks until a time (seconds since the epoch), or none; return whether they are retained."""
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
        """Remove blocks from the account: evicted, or ordered without a hint."""
        if self._until:
            for block in blocks:
                before = self._until.pop(block, None)
                if before is not None:
                    self.held -= before[1]

    def clear(self) -> None:
        """Remove all blocks from the account."""
        self._until.clear()
        self.held = 0

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
