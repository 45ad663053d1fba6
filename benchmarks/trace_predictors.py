"""What the sides of a replayed trace ask: nobody, one who says the same of all, an oracle, or a sidecar."""

import time
from collections.abc import Hashable
from typing import Any, Final

from benchmarks.told import CONTINUES, OVER, Told
from benchmarks.trace_replay import Replay
from eviction_client.predictor_client import PredictorClient

SERVED: Final = "tiny"
ANSWER_WITHIN_S: Final = 60.0
"""Real time that the sidecar has for an answer."""


def number_of(request_id: Hashable) -> int:
    """Return a request's place in the trace; vLLM may append a random part to the id that it was given."""
    return int(str(request_id).partition("-")[0])


class Asked(PredictorClient):
    """The plug-in's own client, which waits for each answer while the virtual clock stands."""

    def __init__(self, address: str, replay: Replay) -> None:
        super().__init__(address, served_model=SERVED, timeout_s=ANSWER_WITHIN_S)
        self._replay = replay
        until = time.monotonic() + ANSWER_WITHIN_S
        while not self.healthy and time.monotonic() < until:
            time.sleep(0.05)

    def ask(self, request_id: Hashable, **known: Any) -> None:
        """As the plug-in asks, and until the answer is there."""
        known["token_ids"] = self._replay.told(number_of(request_id))
        super().ask(request_id, **known)
        until = time.monotonic() + ANSWER_WITHIN_S
        while self.waiting and time.monotonic() < until:
            if not self.healthy:
                raise SystemExit("the sidecar went away")
            time.sleep(0.0002)


def predictor_of(side: str, replay: Replay, address: str | None) -> Asked | Told | None:
    """Return what a side asks: stock nothing, lru one whose answers change nothing, oracle the trace, the others a sidecar."""
    if side == "stock":
        return None
    if side == "lru":
        return Told(lambda _: CONTINUES)
    if side == "oracle":
        return Told(lambda request: CONTINUES if replay.goes_on[number_of(request)] else OVER)
    assert address is not None
    return Asked(address, replay)
