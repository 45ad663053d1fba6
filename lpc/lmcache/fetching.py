"""Which conversations are fetched from disk into memory before they are asked for, and what became of those that were."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from lpc.lmcache.budget import PrefetchBudget
from lpc.lmcache.conversations import Chunk, Conversation
from lpc.lmcache.due import due, price
from lpc.lmcache.room import Room
from lpc.model.returns.hazards import Floats

COMES_S: Final = 15.0
"""For a fetch to come; what has not come by then will not."""
AT_ONCE: Final = 16
"""Fetches of a node in one tick, the best first."""


@dataclass(slots=True, eq=False)
class Fetch:
    """A fetch ahead that was asked for.

    Attributes:
        until: the end of the horizon for which it is, seconds since the epoch.
        waiting: bytes by chunk that have come, or shall, and are not used yet.
        come: chunks that have come.
        reported: its own reading, which LMCache reports as it does a look-up's, has been reported.
    """

    conversation: Conversation
    node: str
    at: float
    until: float
    waiting: dict[Chunk, int]
    come: set[Chunk] = field(default_factory=set)
    reported: bool = False

    @property
    def bytes(self) -> int:
        """Of all that waits."""
        return sum(self.waiting.values())


class Candidate:
    """A conversation that might be fetched. ``curve``: [ages] from its arrival on; ``missing``: bytes by chunk."""

    __slots__ = ("conversation", "curve", "missing")

    def __init__(self, conversation: Conversation, curve: Floats, missing: dict[Chunk, int]) -> None:
        self.conversation = conversation
        self.curve = curve
        self.missing = missing


class Fetching:
    """The fetches of all nodes. Not thread-safe.

    Args:
        used_share: of the bytes fetched that shall be used.
        share: of a node's memory that may wait to be used.
        longest_s: horizon.

    Attributes:
        budgets: by node.
    """

    def __init__(self, used_share: float, share: float, longest_s: float) -> None:
        self._used_share = used_share
        self._share = share
        self._longest_s = longest_s
        self.budgets: dict[str, PrefetchBudget] = {}
        self._fetches: dict[Conversation, Fetch] = {}

    def find(self, conversation: Conversation) -> Fetch | None:
        """Return the fetch of a conversation that waits to be used."""
        return self._fetches.get(conversation)

    def declare(self, node: str, capacity: int) -> None:
        """Note how much memory a node has, bytes."""
        self.budgets.setdefault(node, PrefetchBudget(0, self._used_share)).bytes = int(capacity * self._share)

    def choose(self, node: str, candidates: list[Candidate], room: Room, average: Floats, now: float) -> list[Fetch]:
        """Return what is due, within the budget, and take it into the books."""
        budget = self.budgets.get(node)
        if budget is None or not candidates:
            return []
        # While memory has room to spare, room costs nothing.
        worth = price(average, max(room.lifetime.seconds, 1.0)) if room.pressed else 0.0
        curves = np.array([c.curve for c in candidates])
        age = np.array([max(now - c.conversation.arrived_at, 0.0) for c in candidates])
        found = due(curves, age, budget.needed, self._longest_s)
        chosen: list[Fetch] = []
        for place in np.argsort(-found.worth):
            hold = float(found.hold_s[place])
            if not hold > 0.0 or found.worth[place] <= worth or len(chosen) == AT_ONCE:  # NaN is not, either
                break
            candidate = candidates[place]
            if budget.take(sum(candidate.missing.values())):
                fetch = Fetch(candidate.conversation, node, now, now + hold, dict(candidate.missing))
                self._fetches[candidate.conversation] = fetch
                chosen.append(fetch)
        return chosen

    def came(self, chunk: Chunk, node: str) -> bool:
        """Note that a chunk has come into a node's memory; return whether a fetch has brought it."""
        for conversation in chunk.holders:
            fetch = self._fetches.get(conversation)
            if fetch is not None and fetch.node == node and chunk in fetch.waiting and chunk not in fetch.come:
                fetch.come.add(chunk)
                return True
        return False

    def returned(self, conversation: Conversation, node: str, read: set[Chunk]) -> int:
        """Note that a conversation has returned and what was read; return bytes that a fetch had brought."""
        fetch = self._fetches.pop(conversation, None)
        if fetch is None:
            return 0
        come = {chunk: size for chunk, size in fetch.waiting.items() if chunk in fetch.come}
        came = sum(come.values())
        used = sum(size for chunk, size in come.items() if chunk in read) if fetch.node == node else 0
        budget = self.budgets[fetch.node]
        budget.untake(fetch.bytes - came)
        budget.settle(used, came - used)
        return used

    def reads(self, conversation: Conversation) -> bool:
        """Return whether a reading that is reported is that of a fetch that is under way; it is only once."""
        fetch = self._fetches.get(conversation)
        if fetch is None or fetch.reported:
            return False
        fetch.reported = True
        return True

    def gone(self, chunk: Chunk, node: str) -> None:
        """Note that a chunk has left a node's memory: a fetch that had brought it has brought it for nothing."""
        for conversation in chunk.holders:
            fetch = self._fetches.get(conversation)
            if fetch is not None and fetch.node == node and chunk in fetch.come:
                fetch.come.discard(chunk)
                self.budgets[node].settle(0, fetch.waiting.pop(chunk))

    def settle(self, now: float) -> list[Conversation]:
        """Settle what is over: its horizon has passed, or nothing has come. Return whose fetches these were."""
        over = []
        for conversation, fetch in list(self._fetches.items()):
            missing = [chunk for chunk in fetch.waiting if chunk not in fetch.come]
            if missing and now - fetch.at > COMES_S:
                self.budgets[fetch.node].untake(sum(fetch.waiting.pop(chunk) for chunk in missing))
            if now > fetch.until or not fetch.waiting:
                self.drop(conversation)
                over.append(conversation)
        return over

    def drop(self, conversation: Conversation, *, refused: bool = False) -> None:
        """Give a fetch up: its bytes were useless. ``refused``: it was never under way."""
        fetch = self._fetches.pop(conversation, None)
        if fetch is None:
            return
        came = 0 if refused else sum(size for chunk, size in fetch.waiting.items() if chunk in fetch.come)
        self.budgets[fetch.node].untake(fetch.bytes - came)
        if came:
            self.budgets[fetch.node].settle(0, came)

    def of_node(self, node: str) -> list[Conversation]:
        """Return the conversations fetched to a node."""
        return [conversation for conversation, fetch in self._fetches.items() if fetch.node == node]
