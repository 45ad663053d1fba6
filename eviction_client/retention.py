"""Tells LMCache's coordinator what an application wants kept, since LMCache's own events do not carry a request's hints.

`POST /lpc/retain` of our controller there (`lpc lmcache coordinator`), from a thread of its own: no request waits for it, and
where nobody answers a hint holds in the engine alone.
"""

import logging
import threading
import time
import urllib.error
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from eviction_client.coordinator import Coordinator

logger = logging.getLogger(__name__)

AFTER_S: Final = 2.0
"""After a request's end: until then LMCache has reported what it stored. Also between two attempts."""
ATTEMPTS: Final = 5
"""While the coordinator does not know the prompt yet, or is away."""
WAITING: Final = 256
"""Hints that wait; over it the oldest are dropped."""


class _Wanted(NamedTuple):
    due: float
    until: float
    attempts: int
    body: dict[str, object]


class Retention:
    """Hands hints on.

    Args:
        url: of the :class:`Coordinator`.
        model: the name that LMCache knows the model by: what vLLM was started with.
        after_s: as AFTER_S.
        clock: monotonic seconds.

    Attributes:
        handed_on, failed: hints that were taken, and that were not in the end.
    """

    def __init__(
        self, url: str, model: str, *, after_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._coordinator = Coordinator(url)
        self._model = model
        self._after_s = AFTER_S if after_s is None else after_s
        self._clock = clock
        self._waiting: deque[_Wanted] = deque(maxlen=WAITING)
        self._wake = threading.Event()
        self._closed = False
        self.handed_on = 0
        self.failed = 0
        self._thread = threading.Thread(target=self._run, name="lpc-retention", daemon=True)
        self._thread.start()

    def ask(self, tokens: Sequence[int], seconds: float, salt: str = "") -> None:
        """Have a request's complete chunks kept for so long from now. Returns at once. ``tokens`` does not change any more."""
        now = self._clock()
        body: dict[str, object] = {"model_name": self._model, "token_ids": tokens, "cache_salt": salt}
        if len(self._waiting) == WAITING:
            self._give_up("too many wait")
        self._waiting.append(_Wanted(now + self._after_s, now + seconds, 1, body))
        self._wake.set()

    def close(self) -> None:
        """Tell nothing more; waits for nothing."""
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._closed:
            pause = self._waiting[0].due - self._clock() if self._waiting else None
            if pause is None or pause > 0:
                self._wake.wait(pause)
                self._wake.clear()
                continue
            try:
                self._tell(self._waiting.popleft())
            except Exception as error:
                self._give_up(type(error).__name__)

    def _tell(self, wanted: _Wanted) -> None:
        seconds = wanted.until - self._clock()
        if seconds <= 0:
            return
        try:
            self._coordinator.post("/lpc/retain", {**wanted.body, "seconds": seconds})
            self.handed_on += 1
        except urllib.error.HTTPError as error:
            with error:  # not its text: it may repeat the prompt
                self._again(wanted, f"HTTP {error.code}", may=error.code == 404 or error.code >= 500)
        except OSError as error:
            self._again(wanted, type(error).__name__)

    def _again(self, wanted: _Wanted, reason: str, *, may: bool = True) -> None:
        if may and wanted.attempts < ATTEMPTS:
            due = self._clock() + self._after_s
            self._waiting.append(wanted._replace(due=due, attempts=wanted.attempts + 1))
        else:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        self.failed += 1
        if self.failed == 1:
            logger.warning("learned prefix cache: LMCache's coordinator did not take lpc_retain_seconds: %s", reason)
