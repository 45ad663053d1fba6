"""The numbers of reuse classes. A class is a combination of features; the numbers follow from what the traffic shows.

Most combinations never occur, so a class gets a number when a request first needs it. There are at most MOST_CLASSES. A class
that no request has needed for IDLE_S gives its number back; while none is free, new combinations share the class of their cell.
"""

from typing import Final

from eviction_client.policy.request import GAP_CLASSES, NEW_GROUPS, Features

MOST_CLASSES: Final = 2048
CELLS: Final = GAP_CLASSES * NEW_GROUPS
IDLE_S: Final = 4 * 3600.0
"""Time after which nothing is known of a class any more: the horizon of the reuse curves."""


class Classes:
    """Numbers of classes. The first CELLS are those of the cells: gap and new tokens alone.

    Attributes:
        keys: features by number; ``numbers``: by features, which may be a plain tuple.
        used: time by number when a request last needed the class.
    """

    def __init__(self) -> None:
        self.keys = [Features(gap, new) for gap in range(GAP_CLASSES) for new in range(NEW_GROUPS)]
        self.numbers: dict[tuple[int, ...], int] = {}
        self.used: dict[int, float] = {}
        self._free: list[int] = []

    def number(self, key: Features, now: float) -> tuple[int, bool]:
        """Return the number of a class, and whether it is new.

        Args:
            now: seconds.
        """
        number = self.numbers.get(key)
        new = number is None
        if number is None:
            if self._free:
                number = self._free.pop()
                self.keys[number] = key
            elif len(self.keys) < MOST_CLASSES:
                number = len(self.keys)
                self.keys.append(key)
            else:
                return cell_of(key), False
        self.used[number] = now  # first: another thread releases what is in `numbers` and unused
        self.numbers[key] = number
        return number, new

    def kept(self, number: int, key: Features) -> int:
        """Return the number of a class, once a request had it; if it was given back since, that of the cell."""
        return number if self.numbers.get(key) == number else cell_of(key)

    def release(self, now: float) -> dict[int, int]:
        """Give back the numbers of idle classes; return the cells' classes that take over, by number."""
        heirs = {}
        for number in list(self.numbers.values()):
            if now - self.used[number] > IDLE_S:
                heirs[number] = cell_of(self.keys[number])
                self._release(number)
        return heirs

    def ungroup(self) -> dict[int, int]:
        """Give back the classes with a group of the sidecar, whose groups get new numbers; see :meth:`release`.

        The class with the same other features takes over.
        """
        heirs = {}
        for number in list(self.numbers.values()):
            key = self.keys[number]
            if key.group:
                heirs[number] = self.numbers.get(key._replace(group=0), cell_of(key))
                self._release(number)
        return heirs

    def _release(self, number: int) -> None:
        del self.numbers[self.keys[number]]
        self._free.append(number)


def without_sidecar(key: Features) -> Features:
    """Return the class with the same features, except those of the sidecar."""
    return key._replace(group=0, odds=0) if key.group or key.odds else key


def cell_of(key: Features) -> int:
    """Return the number of the class of the cell of some features."""
    return key.gap * NEW_GROUPS + key.new
