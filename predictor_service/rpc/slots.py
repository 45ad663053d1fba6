"""Bounds how many calls wait for their peer at a time: for the rest of a message, or for a change of health.

Everybody who reaches the port can begin such calls, and gRPC reserves memory for a message as soon as it is read.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

READ_S: Final = 30.0
"""Time in which a message must arrive, and after which a stream without a further message ends."""
MAX_READS: Final = 8
"""Messages that are being received at a time, each of at most `LPC_MAX_REQUEST_BYTES`."""
MAX_UPLOAD_READS: Final = 32
"""The same for streams, which wait for the next part of a tokenizer."""
SPARED_S: Final = 0.2
"""A message may take so long to arrive although others wait. A message of 16 MiB takes 0.14 s at 1 Gbit/s."""
MAX_QUEUED: Final = 4096
"""Calls that wait until their message is received, each with up to 16 KiB of it."""
MAX_HEALTH_READS: Final = 4
"""The same for gRPC's health service, which requires no token."""
HEALTH_SPARED_S: Final = 0.02
"""The same time for the health service, whose messages have 100 bytes."""
MAX_WATCHES: Final = 64
"""Streams of `Watch` of gRPC's health service."""


class Slots:
    """At most ``limit`` waits at a time. If there are more, the oldest wait of the peer that has the most ends.

    A free slot goes to a peer that has the fewest, in order of arrival within a peer. So a peer that sends many messages at
    once loses none of them, and a peer that sends nothing cannot keep the slots. Use it from one event loop only.

    Args:
        limit: number of slots.
        seconds: longest wait; None: unlimited.
        spared_s: seconds for which a wait does not end for another one, which is queued until then.
    """

    def __init__(self, limit: int, seconds: float | None = None, spared_s: float = 0.0) -> None:
        self._limit = limit
        self._seconds = seconds
        self._spared_s = spared_s
        self._free = limit
        self._waits: dict[str, dict[asyncio.Timeout, float]] = {}
        """Waits that hold a slot, by peer, with their beginning; the oldest first."""
        self._queue: dict[str, deque[asyncio.Future[None]]] = {}
        self._queued = 0

    @contextlib.asynccontextmanager
    async def hold(self, peer: str) -> AsyncIterator[None]:
        """Hold a slot within the block. Raises TimeoutError: the time has passed, or another wait got the slot."""
        await self._take(peer)
        wait = asyncio.timeout(self._seconds)
        self._waits.setdefault(peer, {})[wait] = asyncio.get_running_loop().time()
        try:
            async with wait:
                yield
        finally:
            self._leave(peer, wait)

    async def _take(self, peer: str) -> None:
        if not self._free and not self._spared_s:
            self._end_one()
        if self._free and not self._queue:
            self._free -= 1
            return
        if self._queued >= MAX_QUEUED:
            raise TimeoutError
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.setdefault(peer, deque()).append(turn)
        self._queued += 1
        try:
            while not turn.done():
                await asyncio.wait([turn], timeout=self._spared_s)
                if not turn.done():
                    self._end_one()
        except asyncio.CancelledError:
            if turn.done():
                self._give_back()
            else:
                self._unqueue(peer, turn)
            raise

    def _end_one(self) -> None:
        """End the oldest wait of the peer that has the most, unless it is spared."""
        before = asyncio.get_running_loop().time() - self._spared_s
        stalled = [peer for peer, waits in self._waits.items() if next(iter(waits.values())) <= before]
        if not stalled:
            return
        peer = max(stalled, key=lambda peer: len(self._waits[peer]))
        oldest = next(iter(self._waits[peer]))
        self._leave(peer, oldest)
        if not oldest.expired():
            oldest.reschedule(asyncio.get_running_loop().time())

    def _leave(self, peer: str, wait: asyncio.Timeout) -> None:
        waits = self._waits.get(peer, {})
        if waits.pop(wait, None) is None:
            return
        if not waits:
            del self._waits[peer]
        self._give_back()

    def _give_back(self) -> None:
        """Give a free slot to the first call in the queue of a peer that has the fewest."""
        if not self._queue:
            self._free += 1
            return
        peer = min(self._queue, key=lambda peer: len(self._waits.get(peer, ())))
        turn = self._queue[peer][0]
        turns = self._unqueue(peer, turn)
        if turns:
            # The peers take turns.
            del self._queue[peer]
            self._queue[peer] = turns
        turn.set_result(None)

    def _unqueue(self, peer: str, turn: "asyncio.Future[None]") -> "deque[asyncio.Future[None]]":
        turns = self._queue[peer]
        turns.remove(turn)
        self._queued -= 1
        if not turns:
            del self._queue[peer]
        return turns
