"""When a sidecar is asked, and when it is left in peace, since it does not answer in time."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

import grpc

SILENCES: Final = 3
"""Deadlines missed one after the other, after which the sidecar is left in peace."""
REST_S: Final = 1.0
"""How long, and then one request asks."""


class Patience:
    """When the sidecar is asked, and when it is left in peace. Thread-safe.

    ``clock``: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._silences = 0
        self._until = 0.0

    @property
    def spent(self) -> bool:
        """Whether it was silent as often as is borne."""
        return self._silences >= SILENCES

    def may_ask(self) -> bool:
        """Say whether this request may ask. While the sidecar is silent, one in `REST_S` may."""
        with self._lock:
            if self._silences < SILENCES:
                return True
            now = self._clock()
            if now < self._until:
                return False
            self._until = now + REST_S
            return True

    def answered(self) -> None:
        """Note that it spoke, if only to refuse."""
        self._silences = 0

    def silent(self) -> None:
        """Note that a deadline was missed."""
        with self._lock:
            self._silences += 1
            if self._silences == SILENCES:
                self._until = self._clock() + REST_S

    def note(self, error: grpc.RpcError) -> None:
        """Note what a failed call says of the sidecar."""
        if code_of(error) is grpc.StatusCode.DEADLINE_EXCEEDED:
            self.silent()
        else:
            self.answered()


def code_of(error: grpc.RpcError) -> Any:
    """Return the status code of a failed call; None where it has none."""
    code = getattr(error, "code", None)
    return code() if callable(code) else None
