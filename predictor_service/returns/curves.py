"""The groups' curves as streams and GetModelInfo send them: renewed when they have changed, sent to whoever is connected."""

import asyncio
from collections.abc import Callable
from typing import Final

import numpy as np

from lpc.model.returns.groups import GroupCurves
from lpc.v1 import predictor_pb2 as pb

SHARE: Final = 0.1
LEAST: Final = 0.002
"""A hazard has changed when it differs by more than this and SHARE of itself. A group's curve trembles with every conversation
that joins it, and an engine weighs the curve as 100 blocks that it has seen."""


class PublishedCurves:
    """The curves in their present form. Lives on one event loop, but for its construction.

    Attributes:
        message: to be read only; all streams send the same.
    """

    def __init__(self, snapshot: Callable[[], GroupCurves]) -> None:
        """``snapshot``: returns the groups as they are; called in a thread."""
        self._snapshot = snapshot
        self._watchers: set[Callable[[], None]] = set()
        self._published = GroupCurves("", np.zeros((0, 0)))
        self.message = pb.ReuseCurves()
        self.look()

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call ``watcher`` whenever the curves have changed; return what ends that."""
        self._watchers.add(watcher)
        return lambda: self._watchers.discard(watcher)

    async def renew(self) -> None:
        """Look at the groups; tell those who watch if the curves have changed."""
        if await asyncio.to_thread(self.look):
            for watcher in list(self._watchers):
                watcher()

    def look(self) -> bool:
        """Look at the groups without telling anybody; return whether the curves have changed."""
        found = self._snapshot()
        if not _differ(self._published, found):
            return False
        self._published, self.message = found, message_of(found)
        return True


def message_of(groups: GroupCurves) -> pb.ReuseCurves:
    """Return groups as they go over the wire."""
    curves = [pb.ReuseCurve(group=number, hazards=row) for number, row in enumerate(groups.hazards.tolist(), 1)]
    return pb.ReuseCurves(epoch=groups.epoch, curves=curves)


def _differ(published: GroupCurves, found: GroupCurves) -> bool:
    if published.epoch != found.epoch or published.hazards.shape != found.hazards.shape:
        return True
    return not np.allclose(found.hazards, published.hazards, rtol=SHARE, atol=LEAST)
