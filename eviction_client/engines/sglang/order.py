"""Eviction strategy of SGLang's radix tree, like those in SGLang's ``evict_policy.py``.

When SGLang's Python tree core evicts, it gets the priority of each leaf from its strategy and evicts the lowest. So a node's
priority is the value of its reuse class under the rule in force at its current age, which may rise as well as fall. (The
strategies of the Rust core are built in, with one fixed number per node. Sessions that all return after about the same time
would be evicted as under LRU.)

Only leaves are evicted, so a chain's deepest node always goes first. The data for a node's priority, its :class:`Place`, is an
attribute of the node.

Under `lru` the order is by ``last_access_time``, as in SGLang's own ``LRUStrategy``. Nodes that waiting requests will hit go
last under any rule.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from eviction_client.engines.sglang.chain import BLOCK_TOKENS
from eviction_client.engines.sglang.waiting_prefixes import WaitingPrefixes
from eviction_client.policy.queue.free_queue import DONE, PREEMPTED, SOON, Table, soon_of
from eviction_client.policy.request import TrackedRequest
from lpc.model.curve import value_at

FIRST: Final = -1
"""Rank of nodes that a hint has marked as done. Other nodes have rank 0."""
LAST: Final = 1
"""Rank of nodes that a hint retains."""
NEEDED_BY_WAITING: Final = 2
"""Rank of nodes that a waiting request will hit."""


class Place:
    """The data for a node's priority.

    Attributes:
        reuse_class: class of :class:`eviction_client.policy.policy.Policy`, or ``DONE`` or ``PREEMPTED``.
        used: end of the last request that used the node, seconds.
        until: end of a hint's retention, seconds; 0 without one.
    """

    __slots__ = ("reuse_class", "until", "used")

    def __init__(self, reuse_class: int, used: float, until: float = 0.0) -> None:
        self.reuse_class = reuse_class
        self.used = used
        self.until = until


class RuleStrategy:
    """Computes a node's priority under the rule in force; the lowest is evicted. Never raises.

    A node without a place belongs to an unfinished request. If the node can be evicted, the request was preempted.

    Args:
        failed: called with exceptions. The node then gets its LRU priority.
        keep: the waiting requests; None: their nodes are not kept.

    Attributes:
        now: time of the eviction, seconds, the same for all nodes.
    """

    def __init__(self, failed: Callable[[Exception], None], keep: WaitingPrefixes | None = None) -> None:
        self._keep = keep
        self.now = 0.0
        self._tables: Sequence[Table] | None = None
        self._soon = SOON
        self._failed = failed

    @property
    def tables(self) -> Sequence[Table] | None:
        """The tables of the rule in force, as last set; None: least recently used first."""
        return self._tables

    def set_tables(self, tables: Sequence[Table] | None) -> None:
        """Set the tables of the rule in force, which apply to all nodes at once; None: least recently used first."""
        self._tables, self._soon = tables, soon_of(tables)

    def get_priority(self, node: Any) -> tuple[int, float]:
        """Return a node's rank, and within it the value at its current age or the time of its last access."""
        try:
            if self._keep is not None and (first := self._keep.first(node)) is not None:
                return NEEDED_BY_WAITING, -first
            now = self.now
            place = getattr(node, "lpc", None)
            if place is None:
                place = node.lpc = Place(PREEMPTED, now)
            if place.until:
                if place.until > now:
                    return LAST, node.last_access_time
                place.used, place.until = place.until, 0.0
            if place.reuse_class == DONE:
                return FIRST, node.last_access_time
            if self._tables is not None:
                table = self._soon if place.reuse_class == PREEMPTED else self._tables[place.reuse_class]
                return 0, value_at(table, max(now - place.used, 0.0))
        except Exception as error:
            self._failed(error)
        return 0, node.last_access_time

    @staticmethod
    def used(nodes: Iterable[Any], classes: Iterable[int], now: float, until: float = 0.0) -> None:
        """Set the places of nodes that a request used until ``now``. ``until``: end of a retention, 0 without one."""
        for node, reuse_class in zip(nodes, classes, strict=True):
            node.lpc = Place(reuse_class, now, 0.0 if reuse_class == DONE else until)


def classes_of(request: TrackedRequest[Any], tokens: Sequence[int]) -> list[int]:
    """Return the reuse classes of the nodes on a request's path. ``tokens``: of each node.

    A node has the class of the deepest block that ends in it or before it. A block that extends beyond the node may be private
    to a conversation although the node is shared, so it must not make the node ``DONE``.
    """
    ends = [run.end for run in request.spans]
    classes, depth = [], 0
    for count in tokens:
        depth += count
        deepest = depth // BLOCK_TOKENS - 1
        known = ends and deepest >= 0
        classes.append(request.spans[min(bisect_right(ends, deepest), len(ends) - 1)].reuse_class if known else request.newest)
    return classes
