"""Expiry times of the pins that retention hints set on disk.

LMCache's pins do not expire. So each pin set here is recorded with its expiry time before LMCache gets it, in the file in
which LMCache stores pins (``--metadata-path``). A restart of the coordinator only delays the expiry.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from lpc_apps.lmcache.events import ObjectId

SECTION: Final = "lpc_retained"
"""Name of the section in the coordinator's metadata."""


class Retained:
    """Pins with an expiry time. Not thread-safe.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[ObjectId, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def extend(self, objects: list[ObjectId], until: float) -> list[ObjectId]:
        """Set expiry times, or keep an earlier call's if it is later; return the objects that must be pinned now."""
        new = [object_ for object_ in objects if object_ not in self._until]
        for object_ in objects:
            self._until[object_] = max(until, self._until.get(object_, 0.0))
        return new

    def expired(self) -> list[ObjectId]:
        """Return the objects whose pins have expired: unpin them, then call `forget`."""
        now = self._clock()
        return [object_ for object_, until in self._until.items() if until <= now]

    def forget(self, objects: list[ObjectId]) -> None:
        """Remove objects that have been unpinned."""
        for object_ in objects:
            self._until.pop(object_, None)

    def capture(self) -> dict[str, object]:
        """Return all expiry times as plain data."""
        return {"entries": [[*object_, until] for object_, until in self._until.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load what `capture` returned. Raises KeyError, TypeError or ValueError if it is damaged."""
        until: dict[ObjectId, float] = {}
        for hash_, model, rank, group, salt, end in state["entries"]:
            until[ObjectId(str(hash_), str(model), int(rank), int(group), str(salt))] = float(end)
        self._until = until
