"""The groups' curves in answers and GetModelInfo; a new version is published when they have changed."""

from collections.abc import Callable, Collection
from hashlib import blake2b
from typing import Final

import numpy as np

from lpc.model.curve import retain_seconds, value_at, values
from lpc.model.returns.groups import GroupCurves
from lpc.model.returns.hazards import EDGES
from lpc.v1 import predictor_pb2 as pb

SHARE: Final = 0.1
LEAST: Final = 0.002
"""A hazard has changed if it differs by more than LEAST plus SHARE of itself. Every conversation changes a group's curve
slightly, and an engine weighs the curve like 100 observed blocks."""


class PublishedCurves:
    """The published curves. After its construction, use it from one event loop only.

    Attributes:
        message: the curves; shared by all answers, so do not modify it.
        version: identifies the message, between 1 and 2**64 - 1; 0: there is no group yet.
    """

    def __init__(self, snapshot: Callable[[], GroupCurves]) -> None:
        """``snapshot``: returns the current groups; called in a thread."""
        self._snapshot = snapshot
        self._published = GroupCurves("", np.zeros((0, 0)))
        self._latest = self._published
        self.message = pb.ReuseCurves()
        self.version = 0
        self.update()

    def add_to(self, response: pb.PredictResponse, known: Collection[int]) -> None:
        """Set the curves' version in an answer, and add the curves unless ``known`` (PredictRequest.known_curves) has it."""
        if self.version:
            response.curves_version = self.version
            if known and self.version not in known:
                response.reuse_curves.CopyFrom(self.message)

    def retain_s(self, group: int, evicted_age_s: float) -> float | None:
        """Return Prediction.retain_s of a group for PredictRequest.evicted_age_s; None: the group is unknown.

        The price of memory is the value of a block that an LRU cache evicts: that of the average curve at the evicted age.
        """
        latest = self._latest
        if latest.average is None or not 0 < group <= len(latest.hazards):
            return None
        price = value_at(values(latest.average.tolist()), evicted_age_s)
        return retain_seconds(values(latest.hazards[group - 1].tolist()), price)

    def update(self) -> bool:
        """Publish the current curves; return whether they have changed."""
        self._latest = found = self._snapshot()
        if not _differ(self._published, found):
            return False
        self._published, self.message = found, message_of(found)
        digest = blake2b(self.message.SerializeToString(deterministic=True), digest_size=8).digest()
        self.version = (int.from_bytes(digest, "big") or 1) if self.message.curves else 0
        return True


def message_of(groups: GroupCurves) -> pb.ReuseCurves:
    """Return the curves of groups as a message."""
    curves = [pb.ReuseCurve(group=number, hazards=row) for number, row in enumerate(groups.hazards.tolist(), 1)]
    return pb.ReuseCurves(epoch=groups.epoch, curves=curves, edges_s=EDGES.tolist())


def _differ(published: GroupCurves, found: GroupCurves) -> bool:
    if published.epoch != found.epoch or published.hazards.shape != found.hazards.shape:
        return True
    return not np.allclose(found.hazards, published.hazards, rtol=SHARE, atol=LEAST)
