"""How much may be fetched ahead: bytes that wait to be used, and how many of them turn out useless.

The share that was used is held, not hoped for: the probability of a return that a fetch needs rises with each useless one and
falls with each used one, so that their balance is where the share asked for is (stochastic approximation, Robbins and Monro
1951). It starts at that share, which is right if the curves are.
"""

from typing import Final

STEP: Final = 0.02
"""By which one fetch of the mean size moves the probability needed."""
MARGIN: Final = 0.1
"""By which the share is aimed higher than it was asked for."""
LEAST: Final = 0.1
MOST: Final = 0.95


class PrefetchBudget:
    """Counts fetches of one node.

    Args:
        bytes_: that may wait to be used.
        used_share: of the bytes fetched that shall be used, in (0, 1).

    Attributes:
        waiting: bytes fetched that may still be used.
        prefetched, used, useless: bytes: asked for and come; of these used, and gone or given up without.
        needed: probability of a return that a fetch needs now.
        refused: fetches that there was no budget for.
    """

    def __init__(self, bytes_: int, used_share: float) -> None:
        self.bytes = bytes_
        self.waiting = 0
        self.prefetched = 0
        self.used = 0
        self.useless = 0
        self.refused = 0
        self._size = 0.0
        """Of a fetch, mean of the latest; bytes."""
        self._aim = min(used_share + MARGIN, MOST)
        self.needed = used_share

    def take(self, size: int) -> bool:
        """Take bytes of the budget; return whether there were so many."""
        if self.waiting + size > self.bytes:
            self.refused += 1
            return False
        self.waiting += size
        self.prefetched += size
        self._size += (size - self._size) * (0.1 if self._size else 1.0)
        return True

    def untake(self, size: int) -> None:
        """Give back what did not come."""
        self.waiting -= size
        self.prefetched -= size

    def settle(self, used: int, useless: int) -> None:
        """Note what has become of a fetch: so many bytes were used, so many were not."""
        self.waiting -= used + useless
        self.used += used
        self.useless += useless
        settled = used + useless
        if settled > 0 and self._size:
            step = STEP * min(settled / self._size, 1.0) * (self._aim - used / settled)
            self.needed = min(max(self.needed + step, LEAST), MOST)
