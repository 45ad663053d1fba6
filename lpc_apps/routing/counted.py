"""Ends of prefills that a router does not see, from an engine's own count of first tokens.

An answer that is not streamed begins at its end. But engines count first tokens (`vllm:time_to_first_token_seconds_count`).
They compute prompts in the order in which they got them. So each first token that the router has not seen itself is that of the
oldest request without a stream.

The count is of all clients. If there are more first tokens than requests that could have had one, others send requests past the
router. If these are many, the count says nothing of the router's own, and it is not used for a while.
"""

import math
from typing import Final

from lpc_apps.routing.router import EngineWork, Sending

COUNT_S: Final = 0.25
"""Seconds between looks at the count while a first token is to come that the router does not see."""
STRANGE: Final = 0.1
"""Share of the first tokens that may be of others."""
LEAST: Final = 20
"""Requests after which this is judged."""
APART_S: Final = 60.0
"""Seconds for which the count is not used after that."""


class FirstTokens:
    """First tokens of one engine.

    Whether the count is used, because it is known and says something of the router's own requests, is `EngineWork.counted`.
    """

    def __init__(self, engine: EngineWork) -> None:
        self._engine = engine
        self._open: dict[Sending, None] = {}
        """Requests in the engine that are not streamed and have had no first token, in the order in which it got them."""
        self._before: set[Sending] = set()
        """Requests that are not streamed and whose first token is accounted for, until their answer."""
        self._base = 0
        """Count of the engine that the first tokens of others account for."""
        self._seen = 0
        self._handed = 0
        self._strange = 0
        self._lacking = False
        self._until = -math.inf

    @property
    def waits(self) -> bool:
        """Whether a first token is to come that the router does not see."""
        return bool(self._open)

    def asks(self, now: float) -> bool:
        """Return whether the engine's count would say something: a first token is to come that the router does not see."""
        return self.waits and now >= self._until

    def handed(self, sending: Sending) -> None:
        """Record that the engine gets a request now."""
        self._handed += 1
        if not sending.streamed:
            self._open[sending] = None

    def first(self, sending: Sending) -> None:
        """Record the first bytes of an answer."""
        self._open.pop(sending, None)
        if sending in self._before:
            self._before.remove(sending)
        else:
            self._seen += 1

    def ended(self, sending: Sending) -> None:
        """Record that a request has ended, with an answer or without."""
        self._open.pop(sending, None)
        self._before.discard(sending)

    def unknown(self, now: float, apart_s: float = 0.0) -> None:
        """Record that the engine gives no count. ``apart_s``: seconds for which it is not asked again."""
        self._engine.counted, self._until = False, now + apart_s

    def read(self, count: int, now: float) -> bool:
        """Record the engine's count; return whether a request has had its first token."""
        if now < self._until:
            return False
        fresh = count - self._base - self._seen
        if not self._engine.counted or count < self._base:  # the first count, or that of a new process
            self._base, self._seen, self._handed, self._strange, self._lacking = count, 0, len(self._open), 0, False
            self._engine.counted = True  # whether those in the engine have had their first token is not known
            return False
        if fresh < 0:
            # Once it may only be late. Twice: first tokens from before the first count are among those seen.
            if self._lacking:
                self._base += fresh
                self._strange = max(self._strange + fresh, 0)
            self._lacking = not self._lacking
            return False
        self._lacking = False
        done = list(self._open)[:fresh]
        for sending in done:
            del self._open[sending]
            self._before.add(sending)
            self._engine.prefilled(sending, now)
        self._seen += len(done)
        self._base += fresh - len(done)
        self._strange += fresh - len(done)
        if self._handed >= LEAST:
            if self._strange > STRANGE * self._handed:
                self.unknown(now, APART_S)
            self._handed = self._strange = 0
        return bool(done)
