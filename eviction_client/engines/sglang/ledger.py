"""Which keys the nodes of SGLang's tree have, since the tree does not tell: so that evictions show how long blocks live."""

from collections.abc import Iterable
from typing import Final

from eviction_client.credit import Lifetime
from eviction_client.score import Keys

MAX_NODES: Final = 2**18
"""Nodes remembered; over it all are forgotten, and what is evicted before they are used again does not count."""


class Ledger:
    """Keys by node, and the lifetime that evictions show. Not thread-safe.

    Args:
        lifetime: of the cache, in tokens; learnt here.
    """

    def __init__(self, lifetime: Lifetime) -> None:
        self.lifetime = lifetime
        self._keys: dict[int, Keys] = {}

    def used(self, nodes: Iterable[int], keys: Keys) -> None:
        """Note that a request with these keys has ended that used these nodes. Keys only rise, as priorities do."""
        known = self._keys
        if len(known) > MAX_NODES:
            known.clear()
        for node in nodes:
            before = known.get(node)
            known[node] = keys if before is None else Keys(max(before.t_last, keys.t_last), max(before.key, keys.key))

    def evicted(self, node: int, tokens: int, now: float, *, trusting: bool) -> None:
        """Learn from the eviction of a node. What was made by a split and not used since is not known, and does not count."""
        keys = self._keys.pop(node, None)
        if keys is not None and tokens > 0 and keys.tells_the_price_of_room:
            self.lifetime.evicted(tokens, keys.key if trusting else keys.t_last, now)

    def clear(self) -> None:
        """Forget all nodes."""
        self._keys.clear()
