"""The order in which SGLang's radix tree evicts its leaves: an eviction strategy like those of SGLang's ``evict_policy.py``.

SGLang's Python tree core asks its strategy for the priority of each leaf whenever it evicts, and evicts the lowest. So a node's
retention value is that of its present age, and it may rise as well as fall. (The Rust core has its strategies built in. There a
priority would have to be fixed when the node is used: with one number per node, sessions that all return after about the same
time are evicted in turn, as under least recent use.)

Only leaves are evicted, so a chain's deepest node always goes first. What a node's order depends on, its :class:`Place`, is an
attribute of the node, and goes with it.

While least recent use is in force the order is that of ``last_access_time``, as in SGLang's own ``LRUStrategy``. What waiting
requests will hit goes last under either rule.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from eviction_client.ended import Ended, Run
from eviction_client.engines.sglang.chain import BLOCK_TOKENS
from eviction_client.engines.sglang.keep import Keep
from eviction_client.value_queue import DONE, GOES_ON, SOON, Table
from lpc.model.curve import value_at

FIRST: Final = -1
"""Rank of nodes that a hint has declared done. The others have 0."""
LAST: Final = 1
"""Rank of nodes that a hint retains."""
KEPT: Final = 2
"""Rank of nodes that a waiting request will hit."""


class Place:
    """What the order of a node depends on.

    Attributes:
        reuse_class: of :class:`eviction_client.plugin.Plugin`, or ``DONE`` or ``GOES_ON``.
        used: seconds; the end of the last request that used the node.
        until: seconds; a hint retains the node until then. 0: none does.
    """

    __slots__ = ("reuse_class", "until", "used")

    def __init__(self, reuse_class: int, used: float, until: float = 0.0) -> None:
        self.reuse_class = reuse_class
        self.used = used
        self.until = until


class ValueStrategy:
    """Gives each node its priority at its present age; the lowest is evicted. Never raises.

    A node without a place belongs to a request that has not ended. If such a node can be evicted, the request was put off.

    Args:
        failed: called with exceptions. The node then has its place in the order of least recent use.
        keep: the requests that wait; None: their nodes are not kept.

    Attributes:
        value_enabled: the retention value orders; else least recent use.
        now: seconds; the time at which the tree evicts. It is the same for all nodes of one walk.
    """

    def __init__(self, failed: Callable[[Exception], None], keep: Keep | None = None) -> None:
        self._keep = keep
        self.value_enabled = False
        self.now = 0.0
        self._tables: Sequence[Table] | None = None
        self._failed = failed

    @property
    def tables(self) -> Sequence[Table] | None:
        """The classes' values at `lpc.model.curve.KNOTS`, as last set."""
        return self._tables

    def set_tables(self, tables: Sequence[Table] | None) -> None:
        """Take the classes' values; None: nothing is known, and least recent use orders."""
        self._tables = tables

    def get_priority(self, node: Any) -> tuple[int, float]:
        """Return a node's rank, and within it the retention value at its present age or the time of its last access."""
        try:
            if self._keep is not None and (first := self._keep.first(node)) is not None:
                return KEPT, -first
            now = self.now
            place = getattr(node, "lpc", None)
            if place is None:
                place = node.lpc = Place(GOES_ON, now)
            if place.until:
                if place.until > now:
                    return LAST, node.last_access_time
                place.used, place.until = place.until, 0.0
            if place.reuse_class == DONE:
                return FIRST, node.last_access_time
            if self.value_enabled and self._tables is not None:
                table = SOON if place.reuse_class == GOES_ON else self._tables[place.reuse_class]
                return 0, value_at(table, max(now - place.used, 0.0))
        except Exception as error:
            self._failed(error)
        return 0, node.last_access_time

    @staticmethod
    def used(nodes: Iterable[Any], classes: Iterable[int], now: float, until: float = 0.0) -> None:
        """Give nodes their places: they were used until now. ``until``: of a retention, 0 without one."""
        for node, reuse_class in zip(nodes, classes, strict=True):
            node.lpc = Place(reuse_class, now, 0.0 if reuse_class == DONE else until)


def classes_of(ended: Ended, tokens: Sequence[int]) -> list[int]:
    """Return the reuse classes of the nodes on a request's path, which have so many tokens each.

    A node has the class of the deepest block that ends in it or before it. A block that reaches beyond the node may belong to
    one conversation while the node is shared: it must not make the node ``DONE``.
    """
    ends = [run.end for run in ended.runs]
    new = Run(0, ended.first_class)
    classes, depth = [], 0
    for count in tokens:
        depth += count
        deepest = depth // BLOCK_TOKENS - 1
        run = ended.runs[min(bisect_right(ends, deepest), len(ends) - 1)] if ends and deepest >= 0 else new
        classes.append(run.reuse_class)
    return classes
