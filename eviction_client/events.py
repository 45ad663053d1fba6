"""The events of an engine, on their way from the scheduler's thread to the background."""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

MAX_WAITING: Final = 20_000
"""Events that may wait; beyond it the oldest are dropped."""

Event = tuple[Callable[[Any], None], Any]
"""What the background does with it, and the request; of an emptied cache, the time."""


class Events:
    """A queue that neither side waits for. Only the scheduler's thread appends, only the background takes.

    Attributes:
        dropped: whether events have been dropped; the background sets it back.
    """

    def __init__(self) -> None:
        self.dropped = False
        self._events: deque[Event] = deque(maxlen=MAX_WAITING)
        self._appended = self._handled = 0

    def append(self, handle: Callable[[Any], None], event: Any) -> None:
        """Append an event, which ``handle`` will process."""
        if len(self._events) == MAX_WAITING:
            self._handled += 1  # the oldest is dropped
            self.dropped = True
        self._events.append((handle, event))
        self._appended += 1

    def handle_next(self) -> bool:
        """Process the oldest event; return whether there was one. An event whose processing raises is gone as well."""
        if not self._events:
            return False
        handle, event = self._events.popleft()
        try:
            handle(event)
        finally:
            self._handled += 1
        return True

    def clear(self) -> None:
        """Drop all events without a trace."""
        self._events.clear()
        self._handled = self._appended

    @property
    def settled(self) -> bool:
        """Whether all events have been processed."""
        return self._handled >= self._appended
