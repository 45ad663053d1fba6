"""The groups' curves as answers and GetModelInfo carry them: renewed when they have changed."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from typing import Final

import numpy as np

from lpc.model.curve import retain_seconds, value_at, values
from lpc.model.returns.groups import GroupCurves
from lpc.model.returns.hazards import EDGES
from lpc.v1 import predictor_pb2 as pb

SHARE: Final = 0.1
LEAST: Final = 0.002
"""A hazard has changed when it differs by more than this and SHARE of itself. A group's curve trembles with every conversation
that joins it, and an engine weighs the curve as 100 blocks that it has seen."""


class PublishedCurves:
    """The curves in their present form. Lives on one event loop, but for its construction.

    Attributes:
        message: to be read only; all answers carry the same.
        version: names the message, between 1 and 2**64 - 1; 0 while no group has been founded.
    """

    def __init__(self, snapshot: Callable[[], GroupCurves]) -> None:
        """``snapshot``: returns the groups as they are; called in a thread."""
        self._snapshot = snapshot
        self._published = GroupCurves("", np.zeros((0, 0)))
        self._values: Sequence[list[float]] = []
        """Of the average curve, then of each group; empty before there is enough to learn from."""
        self.message = pb.ReuseCurves()
        self.version = 0
        self.look()

    def add_to(self, response: pb.PredictResponse, known: Collection[int]) -> None:
        """Name the curves in an answer, and add them unless its caller holds them. ``known``: PredictRequest.known_curves."""
        if self.version:
            response.curves_version = self.version
            if known and self.version not in known:
                response.reuse_curves.CopyFrom(self.message)

    def retain_s(self, group: int, evicted_age_s: float) -> float | None:
        """Return PredictRequest.evicted_age_s as Prediction.retain_s for a group; None: nothing is known of the group.

        The price of room is the value of what an engine that knows nothing of its blocks evicts: the average curve's, at
        the age at which it does.
        """
        if not 0 < group < len(self._values):
            return None
        return retain_seconds(self._values[group], value_at(self._values[0], evicted_age_s))

    async def renew(self) -> None:
        """Look at the groups in a thread."""
        await asyncio.to_thread(self.look)

    def look(self) -> bool:
        """Look at the groups; return whether the curves have changed."""
        found = self._snapshot()
        if found.average is not None:
            self._values = [values(row) for row in (found.average.tolist(), *found.hazards.tolist())]
        if not _differ(self._published, found):
            return False
        self._published, self.message = found, message_of(found)
        digest = blake2b(self.message.SerializeToString(deterministic=True), digest_size=8).digest()
        self.version = (int.from_bytes(digest, "big") or 1) if self.message.curves else 0
        return True


def message_of(groups: GroupCurves) -> pb.ReuseCurves:
    """Return groups as they go over the wire."""
    curves = [pb.ReuseCurve(group=number, hazards=row) for number, row in enumerate(groups.hazards.tolist(), 1)]
    return pb.ReuseCurves(epoch=groups.epoch, curves=curves, edges_s=EDGES.tolist())


def _differ(published: GroupCurves, found: GroupCurves) -> bool:
    if published.epoch != found.epoch or published.hazards.shape != found.hazards.shape:
        return True
    return not np.allclose(found.hazards, published.hazards, rtol=SHARE, atol=LEAST)
