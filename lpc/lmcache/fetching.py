"""Which conversations are fetched from disk into memory before they are asked for, and what became of those that were.

The share of fetched bytes that is used is controlled: the probability of a return that a fetch needs rises with each useless
fetch and falls with each used one, so that their balance is at the share asked for (stochastic approximation, Robbins and Monro
1951). It starts at that share, which is right if the curves are.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from eviction_client.curve import retain_seconds, value_at
from lpc.lmcache.classes import Classes
from lpc.lmcache.room import Room
from lpc.lmcache.tree import Chunk, Conversation

COMES_S: Final = 15.0
"""For a fetch to come; what has not come by then will not."""
AT_ONCE: Final = 4
"""Fetches under way to one node. LMCache asks its disk for eight requests at once (--l2-prefetch-max-in-flight), look-ups and
fetches in one queue: half of it stays free, so that no request waits behind what is fetched ahead."""

STEP: Final = 0.005
"""By which one fetch of the mean size moves the probability needed."""
IDLE_STEP: Final = 0.0005
"""By which it falls in a plan without a fetch."""
MARGIN: Final = 0.05
"""By which the share is aimed higher than it was asked for."""
LEAST: Final = 0.1
MOST: Final = 0.95


class PrefetchBudget:
    """Counts fetches of one node.

    Args:
        bytes_: of memory that may be held for what was fetched.
        used_share: of the bytes fetched that shall be used, in (0, 1).

    Attributes:
        held: bytes of memory that conversations hold for which something was fetched: with it what they had there already.
        prefetched, used, useless: bytes: asked for and come; of these used, and gone or given up without.
        needed: probability of a return that a fetch needs now.
        refused: fetches that there was no budget for.
    """

    def __init__(self, bytes_: int, used_share: float) -> None:
        self.bytes = bytes_
        self.held = 0
        self.prefetched = 0
        self.used = 0
        self.useless = 0
        self.refused = 0
        self._size = 0.0
        """Of a fetch, mean of the latest; bytes."""
        self._aim = min(used_share + MARGIN, MOST)
        self.needed = used_share

    @property
    def waiting(self) -> int:
        """Bytes fetched that are neither used nor useless yet."""
        return self.prefetched - self.used - self.useless

    def take(self, size: int, held: int) -> bool:
        """Fetch so many bytes, so that so many are held; return whether there was budget for it."""
        if self.held + held > self.bytes:
            self.refused += 1
            return False
        self.held += held
        self.prefetched += size
        self._size += (size - self._size) * (0.1 if self._size else 1.0)
        return True

    def untake(self, size: int) -> None:
        """Take back what did not come."""
        self.prefetched -= size

    def release(self, held: int) -> None:
        """Hold it no longer."""
        self.held -= held

    def idle(self) -> None:
        """Nothing that was fetched waits, so nothing would ever lower what is needed: lower it."""
        self.needed = max(self.needed - IDLE_STEP, LEAST)

    def settle(self, used: int, useless: int) -> None:
        """Note what has become of a fetch: so many bytes were used, so many were not."""
        self.used += used
        self.useless += useless
        settled = used + useless
        if settled > 0 and self._size:
            step = STEP * min(settled / self._size, 1.0) * (self._aim - used / settled)
            self.needed = min(max(self.needed + step, LEAST), MOST)


@dataclass(slots=True, eq=False)
class Fetch:
    """A fetch ahead that was asked for.

    Attributes:
        until: when the conversation is no longer worth its room, seconds since the epoch.
        waiting: bytes by chunk that have come, or shall, and are not used yet.
        held: bytes of memory that its conversation takes with it, until it is over.
        come: chunks that have come.
        done: the node has said that it has ended.
        over: its time has passed: it holds no budget, and is used or useless all the same.
        reported: its own reading, which LMCache reports as it does a look-up's, has been reported.
    """

    conversation: Conversation
    node: str
    at: float
    until: float
    waiting: dict[Chunk, int]
    held: int
    come: set[Chunk] = field(default_factory=set)
    done: bool = False
    over: bool = False
    reported: bool = False

    @property
    def bytes(self) -> int:
        """Of all that waits."""
        return sum(self.waiting.values())


class Candidate(NamedTuple):
    """A conversation that might be fetched.

    Attributes:
        reuse_class: of the deepest chunk.
        missing: bytes by chunk.
        here: bytes of its other chunks, which lie in memory.
    """

    conversation: Conversation
    reuse_class: int
    missing: dict[Chunk, int]
    here: int


class Fetching:
    """The fetches of all nodes. Not thread-safe.

    Args:
        used_share: of the bytes fetched that shall be used.
        share: of the memory that may be filled, which fetched conversations may hold.
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
        """Note how much of its memory a node may fill, bytes."""
        self.budgets.setdefault(node, PrefetchBudget(0, self._used_share)).bytes = int(capacity * self._share)

    def takes(self, node: str) -> bool:
        """Return whether a node may be asked for a fetch: its memory is known, and is not full of fetches."""
        budget = self.budgets.get(node)
        return budget is not None and budget.held < budget.bytes

    def choose(self, node: str, candidates: list[Candidate], room: Room, classes: Classes, now: float) -> list[Fetch]:
        """Return what is due, within the budget, the highest value first, and take it into the books.

        A conversation is due while its value is above the price of room, if it is likely enough to be back before it falls
        below it. Until something had to go from memory, room costs nothing, and half its value now stands for the price.
        """
        budget, tables, price = self.budgets.get(node), classes.tables, room.price
        free = self.free(node)
        if budget is None or tables is None or free <= 0:
            return []
        if not self.of_node(node):
            budget.idle()
        due: list[tuple[float, int, float]] = []
        for place, candidate in enumerate(candidates):
            table, age = tables[candidate.reuse_class], max(now - candidate.conversation.used_at, 0.0)
            value = value_at(table, age)
            if value > price:
                until = min(retain_seconds(table, price or value / 2.0, age), age + self._longest_s)
                if classes.chance(candidate.reuse_class, age, until) >= budget.needed:
                    due.append((-value, place, now + until - age))
        chosen: list[Fetch] = []
        for _, place, until in sorted(due):
            if len(chosen) == free:
                break
            if (fetch := self.begin(node, candidates[place], until, now)) is not None:
                chosen.append(fetch)
        return chosen

    def free(self, node: str) -> int:
        """Return how many more fetches a node may be asked for now."""
        return AT_ONCE - sum(fetch.node == node and not fetch.done for fetch in self._fetches.values())

    def begin(self, node: str, candidate: Candidate, until: float, now: float) -> Fetch | None:
        """Take a fetch into the books and return it; None: there is no budget for it."""
        conversation, _, missing, here = candidate
        size = sum(missing.values())
        if not self.budgets[node].take(size, size + here):
            return None
        fetch = self._fetches[conversation] = Fetch(conversation, node, now, until, dict(missing), size + here)
        return fetch

    def came(self, chunk: Chunk, node: str) -> Fetch | None:
        """Note that a chunk has come into a node's memory; return the fetch that has brought it."""
        for conversation in chunk.holders:
            fetch = self._fetches.get(conversation)
            if fetch is not None and fetch.node == node and chunk in fetch.waiting and chunk not in fetch.come:
                fetch.come.add(chunk)
                return fetch
        return None

    def returned(self, conversation: Conversation, node: str, read: set[Chunk]) -> int:
        """Note that a conversation has returned and what was read; return bytes that a fetch had brought."""
        fetch = self._fetches.pop(conversation, None)
        if fetch is None:
            return 0
        used = sum(fetch.waiting[chunk] for chunk in fetch.come if chunk in read) if fetch.node == node else 0
        self._close(fetch, used)
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

    def settle(self, now: float) -> None:
        """Settle what has ended: nothing has come, all has gone, its time is over.

        What has come and still lies in memory when its time is over may be used yet, and is counted as what it turns out to be.
        """
        for conversation, fetch in list(self._fetches.items()):
            budget = self.budgets[fetch.node]
            missing = [chunk for chunk in fetch.waiting if chunk not in fetch.come]
            if missing and now - fetch.at > COMES_S:
                fetch.done = True
                budget.untake(sum(fetch.waiting.pop(chunk) for chunk in missing))
            if not fetch.waiting or now > fetch.until + self._longest_s:
                self.drop(conversation)
            elif now > fetch.until and fetch.done and not fetch.over:
                fetch.over = True
                budget.release(fetch.held)

    def drop(self, conversation: Conversation, *, refused: bool = False) -> None:
        """Give a fetch up: its bytes were useless. ``refused``: it was never under way."""
        fetch = self._fetches.pop(conversation, None)
        if fetch is not None:
            if refused:
                fetch.come.clear()
            self._close(fetch, 0)

    def _close(self, fetch: Fetch, used: int) -> None:
        """Enter what became of a fetch: so many bytes of what has come were used."""
        budget = self.budgets[fetch.node]
        came = sum(fetch.waiting[chunk] for chunk in fetch.come)
        if not fetch.over:
            budget.release(fetch.held)
        budget.untake(fetch.bytes - came)
        budget.settle(used, came - used)

    def of_node(self, node: str) -> list[Conversation]:
        """Return the conversations fetched to a node."""
        return [conversation for conversation, fetch in self._fetches.items() if fetch.node == node]
