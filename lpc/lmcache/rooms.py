"""The rooms of all nodes' tiers, and what the nodes have declared of them."""

from collections.abc import Callable, Sequence

from eviction_client.value_queue import Table
from lpc.lmcache.events import Place
from lpc.lmcache.room import Room


class Rooms(dict[Place, Room]):
    """Rooms by place. Arguments: as :class:`Room` has them."""

    def __init__(self, watermark: float, hints_share: float, classes: int, clock: Callable[[], float]) -> None:
        super().__init__()
        self._made_of = watermark, hints_share, classes, clock
        self._tables: Sequence[Table] | None = None
        self._declared: dict[Place, tuple[int, dict[str, int]]] = {}

    def __missing__(self, place: Place) -> Room:
        room = self[place] = Room(0, *self._made_of)
        room.refitted(self._tables)
        return room

    def refitted(self, tables: Sequence[Table] | None) -> None:
        """Take the classes' values; None: nothing is known."""
        self._tables = tables
        for room in self.values():
            room.refitted(tables)

    def distrust(self) -> None:
        """Put least recent use into force everywhere; see :meth:`Room.distrust`."""
        self._tables = None
        for room in self.values():
            room.distrust()

    def declare(self, place: Place, capacity: int, backend: str, revision: int) -> int:
        """Note the capacity of one of a tier's media, bytes; return that of the tier: 0 where one of them has no bound.

        Args:
            revision: of the declaration; a newer one replaces all.
        """
        declared = self._declared.get(place)
        if declared is None or declared[0] != revision:
            declared = self._declared[place] = (revision, {})
        declared[1][backend] = capacity
        return sum(declared[1].values()) if all(declared[1].values()) else 0

    def behind(self, node: str) -> list[Room]:
        """Return the rooms behind a node's memory: its own disk, then what the fleet shares."""
        return [self[place] for place in (Place("l2", node), Place("l2", "")) if place in self]

    def leave(self, node: str) -> None:
        """Forget a node's memory, which is empty, and of its disk the room where nothing lies in it."""
        for place in (Place("l1", node), Place("l2", node)):
            room = self.get(place)
            if room is not None and not len(room):
                del self[place]
                self._declared.pop(place, None)
