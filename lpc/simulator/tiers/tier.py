"""A tier behind the cache (CPU memory, disk): what nearer ones give up goes there, and prompts are loaded from it."""

from collections.abc import Sequence

from lpc.simulator.tiers.link import Link
from lpc.simulator.tiers.order import Order


class Tier:
    """Content ids of at most ``capacity`` blocks.

    Attributes:
        name: in tables.
        exclusive: what is loaded from it leaves it; else it stays, as in vLLM's CPU tier.
        order: says what goes first.
        link: the way from here.
    """

    def __init__(self, name: str, capacity: int, order: Order, link: Link, *, exclusive: bool = False) -> None:
        self.name = name
        self.exclusive = exclusive
        self.capacity = capacity
        self.order = order
        self.link = link
        self._contents: set[int] = set()

    def store(self, contents: Sequence[int], now: float, *, soon: bool = False) -> list[int]:
        """Take blocks in; return what is given up for them.

        Args:
            soon: they are needed within seconds.
        """
        here = self._contents
        known = [content for content in contents if content in here]
        new = [content for content in contents if content not in here]
        if known:
            self.order.touch(known, now)
        here.update(new)
        self.order.enter(new, now, soon=soon)
        over = len(here) - self.capacity
        if over <= 0:
            return []
        gone = self.order.evict(over, now)
        here.difference_update(gone)
        return gone

    def load(self, contents: Sequence[int], now: float) -> None:
        """Learn that blocks that are here were loaded."""
        if self.exclusive:
            self.order.leave(contents)
            self._contents.difference_update(contents)
        else:
            self.order.touch(contents, now)

    def __contains__(self, content: object) -> bool:
        return content in self._contents

    def __len__(self) -> int:
        return len(self._contents)
