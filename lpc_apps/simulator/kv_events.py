"""Subscription to the KV events of a running engine: vLLM and SGLang publish stored and removed blocks over ZeroMQ.

A message has three frames: topic, number (8 bytes, big-endian), and a msgpack array of time, events and rank. Each event is a
map with a ``type``. Source: ``vllm/distributed/kv_events.py`` of vLLM 0.32; SGLang 0.5.23 sends the same format.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lpc.errors import LpcError

REPLAY_TIMEOUT_MS: Final = 5000
_END: Final = (-1).to_bytes(8, "big", signed=True)


class KVEventsError(LpcError):
    """The events of an engine cannot be read."""


@dataclass(frozen=True)
class Batch:
    """Events of one engine step. ``at``: seconds since the epoch; ``lost``: number of messages missing before it."""

    at: float
    events: list[Mapping[str, Any]]
    lost: int = 0


class KVEvents:
    """A subscription to one engine.

    Args:
        endpoint: the engine's publisher, ``tcp://host:5557``.
        replay: endpoint at which the engine resends messages; None: lost messages are not requested.
        topic: prefix of the topics to receive.

    Raises:
        KVEventsError: the address is invalid, or pyzmq or msgspec is missing.
    """

    def __init__(self, endpoint: str, *, replay: str | None = None, topic: str = "") -> None:
        try:
            import msgspec
            import zmq
        except ModuleNotFoundError as error:
            raise KVEventsError(f"{error.name} is missing: pip install 'learned-prefix-cache[observe]'") from None
        self._unpack = msgspec.msgpack.decode
        self._zmq: Any = zmq
        self._replay = replay
        self._next: int | None = None
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.set_hwm(0)
        self._socket.subscribe(topic.encode())
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise KVEventsError(f"{endpoint}: {error}; an address looks like tcp://host:5557") from None

    def batches(self, wait_s: float) -> Iterator[Batch]:
        """Yield the batches received within ``wait_s`` seconds, in order. Raises KVEventsError: not KV events."""
        until = time.monotonic() + wait_s
        while (left := until - time.monotonic()) > 0 and self._socket.poll(round(1000 * left)):
            frames = self._socket.recv_multipart()
            if len(frames) != 3 or len(frames[1]) != 8:
                raise KVEventsError("the publisher does not send KV events")
            yield from self._in_order(int.from_bytes(frames[1], "big"), frames[2])

    def _in_order(self, number: int, payload: bytes) -> Iterator[Batch]:
        lost = 0
        if self._next is not None and number > self._next:
            for resent, old in self._replayed(self._next, number):
                yield self._batch(old, resent - self._next)
                self._next = resent + 1
            lost = number - self._next
        if self._next is not None and number < self._next:
            if number:
                return  # the replay contained it
            lost = 1  # the engine has restarted
        self._next = number + 1
        yield self._batch(payload, lost)

    def _replayed(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Request the messages in [start, end); yield those that the engine still has."""
        if self._replay is None:
            return
        # DEALER, because REQ allows a single answer and the engine answers with one per message.
        socket = self._context.socket(self._zmq.DEALER)
        try:
            socket.connect(self._replay)
            socket.send_multipart((b"", start.to_bytes(8, "big")))
            while socket.poll(REPLAY_TIMEOUT_MS):
                *_, number, payload = socket.recv_multipart()
                if number == _END or int.from_bytes(number, "big") >= end:
                    return
                yield int.from_bytes(number, "big"), payload
        finally:
            socket.close(linger=0)

    def _batch(self, payload: bytes, lost: int) -> Batch:
        try:
            at, events, *_ = self._unpack(payload)
            return Batch(float(at), [event for event in events if isinstance(event, dict)], lost)
        except Exception as error:
            raise KVEventsError(f"the publisher does not send KV events: {type(error).__name__}") from None

    def close(self) -> None:
        """Close the connection."""
        self._context.destroy(linger=0)
