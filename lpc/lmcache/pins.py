"""What applications have asked to be kept for a while: pinned on disk by LMCache's own pins, and let go when the time is over.

LMCache's pins have no end. So each one taken here is written down with its end before it is taken, in the file that LMCache
keeps its pins in (``--metadata-path``), and none outlives it by more than a restart of the coordinator.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from lpc.lmcache.events import ObjectId

SECTION: Final = "lpc_retained"
"""Name of the section in the coordinator's metadata."""


class Retained:
    """Pins with an end. Not thread-safe.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[ObjectId, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def extend(self, objects: list[ObjectId], until: float) -> list[ObjectId]:
        """Keep objects until then, or as long as was asked for before; return those that are to be pinned now."""
        new = [object_ for object_ in objects if object_ not in self._until]
        for object_ in objects:
            self._until[object_] = max(until, self._until.get(object_, 0.0))
        return new

    def over(self) -> list[ObjectId]:
        """Return the objects whose time is over: they are to be let go."""
        now = self._clock()
        return [object_ for object_, until in self._until.items() if until <= now]

    def let_go(self, objects: list[ObjectId]) -> None:
        """Forget objects that have been let go."""
        for object_ in objects:
            self._until.pop(object_, None)

    def capture(self) -> dict[str, object]:
        """Return all as plain data, to be kept."""
        return {"entries": [[*object_, until] for object_, until in self._until.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what was kept. Raises KeyError, TypeError, ValueError: it is damaged."""
        until: dict[ObjectId, float] = {}
        for hash_, model, rank, group, salt, end in state["entries"]:
            until[ObjectId(str(hash_), str(model), int(rank), int(group), str(salt))] = float(end)
        self._until = until
