"""How much may be fetched ahead: bytes that wait to be used, and how many of them turn out useless.

The share that was used is held, not hoped for: the probability of a return that a fetch needs rises with each useless one and
falls with each used one, so that their balance is where the share asked for is (stochastic approximation, Robbins and Monro
1951). It starts at that share, which is right if the curves are.
"""

from typing import Final

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
