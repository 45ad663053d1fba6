"""Hints that applications send with requests, and the limits on their effect.

Anyone who may use the API can send a hint. So an operator enables hints (``LPC_HINTS_SHARE``), and two rules bound them:

- *Retain*: the blocks that a hint keeps take at most a share of each cache (:class:`Retained`). A hint beyond it is ignored.
- *Done*: only blocks that no other conversation has used go first (:class:`Owners`). Shared ones rank as without the hint.
"""

import math
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from eviction_client.block_hash import BlockHash
from eviction_client.pace import in_pieces
from eviction_client.recent import parts_for
from eviction_client.schedule.prefill import cached_prefix

SWEEP_S: Final = 1.0
"""Shortest interval between searches for expired retentions, which take milliseconds in a large account."""

B = TypeVar("B")

MOST_CHARACTERS: Final = 64
"""Longest value of a hint that is read."""
MAX_RETAIN_S: Final = 3600.0
"""Longest retention that a hint may ask for."""
MOST_UNRECORDED: Final = 64
"""Uses that the background has not recorded. Beyond it, no block counts as a conversation's own."""


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
        if isinstance(done, str):
            done = done[:MOST_CHARACTERS].strip().lower() in ("1", "true", "yes")
        hints = cls(_seconds(arguments.get("lpc_retain_seconds")), bool(done))
        return NO_HINTS if hints == NO_HINTS else hints


NO_HINTS: Final = Hints()


class Owners:
    """Blocks that only one conversation has used.

    The session identifies a conversation. Without a session each request is its own conversation and owns only the blocks that
    it was the first to use.

    The scheduler's thread calls :meth:`used` and :meth:`own_from`, whose cost does not grow with the prompt. The background
    calls :meth:`record`. Who uses a block uses all blocks before it, so a chain's blocks of others precede its own ones.

    Args:
        blocks: number of recent blocks to store, at most twice as many.
    """

    _SHARED: Final = object()

    def __init__(self, blocks: int) -> None:
        self._most = max(blocks, 1)
        self._users = self._new(), self._new()
        """Users of recent and of earlier blocks. One attribute, which the other thread reads at once."""
        self._unrecorded: deque[tuple[object, Sequence[BlockHash]]] = deque(maxlen=MOST_UNRECORDED + 1)

    def _new(self) -> list[dict[BlockHash, object]]:
        """Return an empty table, split as in :mod:`eviction_client.recent`."""
        return [{} for _ in range(parts_for(self._most))]

    def __len__(self) -> int:
        return sum(map(len, (*self._users[0], *self._users[1])))

    def used(self, session: Hashable | None, chain: Sequence[BlockHash]) -> None:
        """Note that a request has used a chain, which must not change afterwards."""
        self._unrecorded.append((session or object(), chain))

    def own_from(self, session: Hashable | None, chain: Sequence[BlockHash]) -> int:
        """Return the depth from which no other conversation has used a chain: its length while too many uses are unrecorded."""
        unrecorded = list(self._unrecorded)
        if len(unrecorded) > MOST_UNRECORDED:
            return len(chain)
        users, earlier = self._users

        def of_others(place: int) -> bool:
            block = chain[place]
            part = hash(block) % len(users)
            user = users[part].get(block) or earlier[part].get(block, session)
            return user is not None and user != session

        depth = cached_prefix(of_others, len(chain), 0)
        return max(depth, 0, *(_shared(chain, other) for user, other in unrecorded if user != session))

    def record(self) -> None:
        """Record the uses noted so far."""
        while self._unrecorded:
            noted = self._unrecorded[0]
            user, chain = noted
            users, earlier = self._users
            for piece in in_pieces(chain):
                for block in piece:
                    part = hash(block) % len(users)
                    before = users[part].get(block) or earlier[part].get(block, user)
                    users[part][block] = user if before == user else self._SHARED
            if sum(map(len, users)) > self._most:
                self._users = self._new(), users
            # The scheduler's thread may have dropped it from a full deque.
            if self._unrecorded and self._unrecorded[0] is noted:
                self._unrecorded.popleft()


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

    def follow(self, blocks: Iterable[Any], until: float, now: float) -> bool:
        """As :meth:`hold`, for blocks that a hinted request's blocks continue; they are looked at up to the limit only.

        The eviction order asks again whenever it reaches them, so a refusal does not count.
        """
        if abs(now - self._swept_at) >= SWEEP_S:
            self._sweep(now)
        known, room, found = self._until, self.limit - self.held, {}
        for block in blocks:
            room -= block not in known
            if room < 0:
                return False
            found[block] = 1
        return self.hold(found, until, now)

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


def _shared(one: Sequence[BlockHash], other: Sequence[BlockHash]) -> int:
    """Return the number of blocks with which both chains begin."""
    return cached_prefix(lambda place: one[place] == other[place], min(len(one), len(other)), 0)


def _seconds(value: Any) -> float:
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        return 0.0
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number if 0.0 < number < math.inf else 0.0
