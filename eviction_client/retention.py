"""Sends retention hints of applications to LMCache's coordinator, since LMCache's own events do not contain them.

A background thread sends `POST /lpc/retain` to our controller there (`lpc lmcache coordinator`), so no request waits. If nobody
answers, a hint applies in the engine only.
"""

import logging
import threading
import time
import urllib.error
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from eviction_client.coordinator import Coordinator

logger = logging.getLogger(__name__)

AFTER_S: Final = 2.0
"""Pause after a request's end, in which LMCache reports the stored chunks, and between two attempts."""
ATTEMPTS: Final = 5
"""Attempts per hint while the coordinator does not know the prompt or is unavailable."""
WAITING: Final = 256
"""Bound of waiting hints. Beyond it the oldest are dropped."""


class _Hint(NamedTuple):
    due: float
    until: float
    attempts: int
    body: dict[str, object]


class Retention:
    """Sends hints.

    Args:
        url: of the :class:`Coordinator`.
        model: name of the model in LMCache: the name that vLLM was started with.
        after_s: replaces AFTER_S.

    Attributes:
        sent, failed: hints accepted by the coordinator; hints given up.
    """

    def __init__(self, url: str, model: str, *, after_s: float | None = None) -> None:
        self._coordinator = Coordinator(url)
        self._model = model
        self._after_s = AFTER_S if after_s is None else after_s
        self._waiting: deque[_Hint] = deque(maxlen=WAITING)
        self._wake = threading.Event()
        self._closed = False
        self.sent = 0
        self.failed = 0
        self._thread = threading.Thread(target=self._run, name="lpc-retention", daemon=True)
        self._thread.start()

    def ask(self, tokens: Sequence[int], seconds: float, salt: str = "") -> None:
        """Retain a request's complete chunks for ``seconds`` from now. Returns at once. ``tokens`` must not change."""
        now = time.monotonic()
        body: dict[str, object] = {"model_name": self._model, "token_ids": tokens, "cache_salt": salt}
        if len(self._waiting) == WAITING:
            self._give_up("too many wait")
        self._waiting.append(_Hint(now + self._after_s, now + seconds, 1, body))
        self._wake.set()

    def close(self) -> None:
        """Stop sending. Returns at once."""
        self._closed = True
        self._wake.set()

    def _run(self) -> None:
        while not self._closed:
            pause = self._waiting[0].due - time.monotonic() if self._waiting else None
            if pause is None or pause > 0:
                self._wake.wait(pause)
                self._wake.clear()
                continue
            try:
                self._send(self._waiting.popleft())
            except Exception as error:
                self._give_up(type(error).__name__)

    def _send(self, hint: _Hint) -> None:
        seconds = hint.until - time.monotonic()
        if seconds <= 0:
            return
        try:
            self._coordinator.post("/lpc/retain", {**hint.body, "seconds": seconds})
            self.sent += 1
        except urllib.error.HTTPError as error:
            with error:  # do not log the body: it may contain the prompt
                self._retry(hint, f"HTTP {error.code}", temporary=error.code == 404 or error.code >= 500)
        except OSError as error:
            self._retry(hint, type(error).__name__)

    def _retry(self, hint: _Hint, reason: str, *, temporary: bool = True) -> None:
        if temporary and hint.attempts < ATTEMPTS:
            due = time.monotonic() + self._after_s
            self._waiting.append(hint._replace(due=due, attempts=hint.attempts + 1))
        else:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        self.failed += 1
        if self.failed == 1:
            logger.warning("learned prefix cache: LMCache's coordinator did not accept lpc_retain_seconds: %s", reason)
