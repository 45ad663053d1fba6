"""Prefetch: which conversations to load from disk into memory before they return, and the outcome of each fetch.

A controller holds the share of fetched bytes that is used at a target. The probability of return that a fetch needs rises with
each useless fetch and falls with each used one (stochastic approximation, Robbins and Monro 1951). It starts at the target
share, which is the right value if the curves are right.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lpc.model.curve import retain_seconds, value_at
from lpc_apps.lmcache.classes import Classes
from lpc_apps.lmcache.tier_cache import TierCache
from lpc_apps.lmcache.tree import Chunk, Conversation

FETCH_TIMEOUT_S: Final = 15.0
"""Chunks that have not arrived this long after the start of their fetch will not arrive."""
MAX_FETCHES: Final = 4
"""Concurrent fetches per node. LMCache serves eight loads from disk at once (--l2-prefetch-max-in-flight), with look-ups and
fetches in one queue. Half of these stay free, so that no request waits behind a prefetch."""

STEP: Final = 0.005
"""Change of the needed probability by one fetch of mean size."""
IDLE_STEP: Final = 0.0005
"""Decrease of the needed probability per plan while no fetch is pending."""
MARGIN: Final = 0.05
"""Added to the configured share to get the target."""
MIN_NEEDED: Final = 0.1
MAX_NEEDED: Final = 0.95


class PrefetchBudget:
    """Memory budget and byte counters of one node's fetches.

    Args:
        bytes_: memory that fetched conversations may hold.
        used_share: configured share of the fetched bytes that is used, in (0, 1).

    Attributes:
        held: bytes of memory that fetched conversations hold, including their chunks that were in memory before.
        prefetched, used, useless: bytes requested and not cancelled; bytes used; bytes evicted or given up unused.
        needed: probability of return that a fetch needs now.
        refused: number of fetches that did not fit into the budget.
    """

    def __init__(self, bytes_: int, used_share: float) -> None:
        self.bytes = bytes_
        self.held = 0
        self.prefetched = 0
        self.used = 0
        self.useless = 0
        self.refused = 0
        self._size = 0.0
        """Moving average of the size of a fetch, bytes."""
        self._target = min(used_share + MARGIN, MAX_NEEDED)
        self.needed = used_share

    @property
    def waiting(self) -> int:
        """Fetched bytes that are neither used nor useless yet."""
        return self.prefetched - self.used - self.useless

    def reserve(self, size: int, held: int) -> bool:
        """Reserve budget for a fetch of ``size`` bytes that holds ``held`` bytes; return whether it fits."""
        if self.held + held > self.bytes:
            self.refused += 1
            return False
        self.held += held
        self.prefetched += size
        self._size += (size - self._size) * (0.1 if self._size else 1.0)
        return True

    def cancel(self, size: int) -> None:
        """Subtract bytes that did not arrive."""
        self.prefetched -= size

    def release(self, held: int) -> None:
        """Free budget, bytes."""
        self.held -= held

    def idle(self) -> None:
        """Lower the needed probability: without pending fetches nothing else would lower it."""
        self.needed = max(self.needed - IDLE_STEP, MIN_NEEDED)

    def settle(self, used: int, useless: int) -> None:
        """Count used and useless bytes of a fetch, and adapt the needed probability."""
        self.used += used
        self.useless += useless
        settled = used + useless
        if settled > 0 and self._size:
            step = STEP * min(settled / self._size, 1.0) * (self._target - used / settled)
            self.needed = min(max(self.needed + step, MIN_NEEDED), MAX_NEEDED)


@dataclass(slots=True, eq=False)
class Fetch:
    """A prefetch of one conversation.

    Attributes:
        at: start of the fetch, seconds since the epoch.
        until: when the conversation's value falls below the price of memory, seconds since the epoch.
        pending: size of each chunk that is to arrive or has arrived, bytes.
        held: bytes of budget that it holds until it has expired.
        arrived: chunks that have arrived in memory.
        done: whether the node has reported its end.
        expired: whether ``until`` has passed; the fetch holds no budget then, but still counts as used or useless.
        read_reported: whether LMCache has reported the fetch's own read, which looks like that of a look-up.
    """

    conversation: Conversation
    node: str
    at: float
    until: float
    pending: dict[Chunk, int]
    held: int
    arrived: set[Chunk] = field(default_factory=set)
    done: bool = False
    expired: bool = False
    read_reported: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of all pending chunks."""
        return sum(self.pending.values())


class Candidate(NamedTuple):
    """A conversation that could be fetched.

    Attributes:
        reuse_class: class of the deepest chunk.
        missing: size of each chunk that is not in memory, bytes.
        memory_bytes: bytes of its chunks that are in memory.
    """

    conversation: Conversation
    reuse_class: int
    missing: dict[Chunk, int]
    memory_bytes: int


class Fetching:
    """The fetches of all nodes. Not thread-safe.

    Args:
        used_share: configured share of the fetched bytes that is used.
        share: share of the memory below the watermark that fetched conversations may hold.
        longest_s: longest time for which a fetched conversation is ranked last in memory, seconds.

    Attributes:
        budgets: the budget of each node.
    """

    def __init__(self, used_share: float, share: float, longest_s: float) -> None:
        self._used_share = used_share
        self._share = share
        self._longest_s = longest_s
        self.budgets: dict[str, PrefetchBudget] = {}
        self._fetches: dict[Conversation, Fetch] = {}

    def find(self, conversation: Conversation) -> Fetch | None:
        """Return the fetch of a conversation; None: there is none."""
        return self._fetches.get(conversation)

    def declare(self, node: str, capacity: int) -> None:
        """Set the bytes of a node's memory below the watermark."""
        self.budgets.setdefault(node, PrefetchBudget(0, self._used_share)).bytes = int(capacity * self._share)

    def has_budget(self, node: str) -> bool:
        """Return whether a node's memory is known and fetches do not use up its budget."""
        budget = self.budgets.get(node)
        return budget is not None and budget.held < budget.bytes

    def choose(self, node: str, candidates: list[Candidate], cache: TierCache, classes: Classes, now: float) -> list[Fetch]:
        """Start the fetches that are due and fit into the budget, highest value first; return them.

        A conversation is due while its value is above the price of memory, if it is likely enough to return before the value
        falls below the price. Before anything was deleted from memory the price is 0; half the current value replaces it.
        """
        budget, tables, price = self.budgets.get(node), classes.tables, cache.price
        free = self.free(node)
        if budget is None or tables is None or free <= 0:
            return []
        if not self.of_node(node):
            budget.idle()
        due: list[tuple[float, int, float]] = []
        for index, candidate in enumerate(candidates):
            table, age = tables[candidate.reuse_class], max(now - candidate.conversation.used_at, 0.0)
            value = value_at(table, age)
            if value > price:
                until = min(retain_seconds(table, price or value / 2.0, age), age + self._longest_s)
                if classes.chance(candidate.reuse_class, age, until) >= budget.needed:
                    due.append((-value, index, now + until - age))
        chosen: list[Fetch] = []
        for _, index, until in sorted(due):
            if len(chosen) == free:
                break
            if (fetch := self.begin(node, candidates[index], until, now)) is not None:
                chosen.append(fetch)
        return chosen

    def free(self, node: str) -> int:
        """Return how many more fetches may run on a node now."""
        return MAX_FETCHES - sum(fetch.node == node and not fetch.done for fetch in self._fetches.values())

    def begin(self, node: str, candidate: Candidate, until: float, now: float) -> Fetch | None:
        """Reserve budget for a fetch and return it; None: it does not fit."""
        conversation, _, missing, memory_bytes = candidate
        size = sum(missing.values())
        held = size + memory_bytes
        if not self.budgets[node].reserve(size, held):
            return None
        fetch = self._fetches[conversation] = Fetch(conversation, node, now, until, dict(missing), held)
        return fetch

    def arrived(self, chunk: Chunk, node: str) -> Fetch | None:
        """Record that a chunk was loaded into a node's memory; return the fetch that loaded it, if any."""
        for conversation in chunk.holders:
            fetch = self._fetches.get(conversation)
            if fetch is not None and fetch.node == node and chunk in fetch.pending and chunk not in fetch.arrived:
                fetch.arrived.add(chunk)
                return fetch
        return None

    def returned(self, conversation: Conversation, node: str, read: set[Chunk]) -> None:
        """Close the fetch of a conversation that has returned; ``read``: the chunks that were read."""
        fetch = self._fetches.pop(conversation, None)
        if fetch is not None:
            used = sum(fetch.pending[chunk] for chunk in fetch.arrived if chunk in read) if fetch.node == node else 0
            self._close(fetch, used)

    def is_own_read(self, conversation: Conversation) -> bool:
        """Return whether a read of a conversation is that of its fetch: the first read after the fetch began is."""
        fetch = self._fetches.get(conversation)
        if fetch is None or fetch.read_reported:
            return False
        fetch.read_reported = True
        return True

    def evicted(self, chunk: Chunk, node: str) -> None:
        """Count a chunk that has left a node's memory as useless if a fetch had loaded it."""
        for conversation in chunk.holders:
            fetch = self._fetches.get(conversation)
            if fetch is not None and fetch.node == node and chunk in fetch.arrived:
                fetch.arrived.discard(chunk)
                self.budgets[node].settle(0, fetch.pending.pop(chunk))

    def settle(self, now: float) -> None:
        """Close fetches that have timed out or whose chunks have all left memory, and release the budget of expired ones.

        Chunks of an expired fetch that are still in memory are counted later, as used or useless.
        """
        for conversation, fetch in list(self._fetches.items()):
            budget = self.budgets[fetch.node]
            missing = [chunk for chunk in fetch.pending if chunk not in fetch.arrived]
            if missing and now - fetch.at > FETCH_TIMEOUT_S:
                fetch.done = True
                budget.cancel(sum(fetch.pending.pop(chunk) for chunk in missing))
            if not fetch.pending or now > fetch.until + self._longest_s:
                self.drop(conversation)
            elif now > fetch.until and fetch.done and not fetch.expired:
                fetch.expired = True
                budget.release(fetch.held)

    def drop(self, conversation: Conversation, *, refused: bool = False) -> None:
        """Close a fetch as useless. ``refused``: it never started, so nothing arrived."""
        fetch = self._fetches.pop(conversation, None)
        if fetch is not None:
            if refused:
                fetch.arrived.clear()
            self._close(fetch, 0)

    def _close(self, fetch: Fetch, used: int) -> None:
        """Update the budget. ``used``: bytes that arrived and were used."""
        budget = self.budgets[fetch.node]
        arrived = sum(fetch.pending[chunk] for chunk in fetch.arrived)
        if not fetch.expired:
            budget.release(fetch.held)
        budget.cancel(fetch.bytes - arrived)
        budget.settle(used, arrived - used)

    def of_node(self, node: str) -> list[Conversation]:
        """Return the conversations with a fetch on a node."""
        return [conversation for conversation, fetch in self._fetches.items() if fetch.node == node]
