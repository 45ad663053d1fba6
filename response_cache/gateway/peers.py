"""Shares the requests of several gateways before the same engines through a Redis channel, so that all choose alike.

Each gateway applies the others' requests to its own router and queue some milliseconds later, as if it had sent them itself.
Without this a gateway lacks the other turns of its conversations and the prefill that waits for others. In a simulated fleet
two gateways that receive requests in turn then serve 147k prompt tokens/s instead of one gateway's 497k.

Messages hold numbers and hashes, never text. They are encrypted by AES-GCM under a key of `LPC_GATEWAY_SALT_KEY_FILE`: who can
write to Redis can drop messages, but cannot read or forge them. Old and repeated ones are ignored. No request waits for Redis:
messages that cannot be sent are dropped and counted.
"""

import asyncio
import contextlib
import secrets
import struct
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from lpc.wire.redis_connection import ERRORS, Connection
from lpc.wire.redis_health import Health
from lpc_apps.routing.prompt import MOST_PIECES, Prompt
from lpc_apps.routing.router import Router, Sending
from response_cache.gateway.metrics import Metrics
from response_cache.gateway.queue import Queue

HELLO_S: Final = 5.0
"""Seconds after which a gateway without requests publishes an empty batch."""
SILENT_S: Final = 15.0
"""Seconds without a message after which a gateway is taken to have ended, and its requests with it."""
LATE_S: Final = 30.0
"""Age and lead of the clock beyond which a message is ignored."""
STOP_S: Final = 3.0
"""Longest wait for the last messages at shutdown, seconds."""
READ_S: Final = 0.25
"""Seconds between looks at whether to stop."""
BATCH_S: Final = 0.002
"""Seconds for which messages are collected."""
MOST_PEERS: Final = 64
MOST_OPEN: Final = 10_000
"""Requests of one gateway without an answer; the oldest are forgotten."""
MOST_WAITING: Final = 4 << 20
"""Bytes of messages that wait for Redis. Beyond it the oldest are dropped."""
MOST_BATCH: Final = 256 << 10
_HEAD: Final = struct.Struct(">8sQd")
_ONE: Final = struct.Struct(">BIH")
"""Kind, number of the request, and bytes that follow."""
_SENT: Final = struct.Struct(">HBHHB")
"""Engine, flags, the engine that the conversation left plus 1, number of pieces, bytes of its name."""
_ENDED: Final = struct.Struct(">BII")
_STREAMED, _HELD = 1, 2
_ANSWERED, _REFUSED, _COUNTED, _CACHED = 1, 2, 4, 8
SENT, HANDED, FIRST, ENDED = range(1, 5)
MOST_SIZE: Final = 2**32 - 1


@dataclass(eq=False)
class _Peer:
    """Another gateway: the time of its last batch, its number, and the requests without an answer."""

    latest: float
    sequence: int = 0
    open: OrderedDict[int, Sending] = field(default_factory=OrderedDict)


class Peers:
    """Lives on one event loop. The gateway calls :meth:`sent`, :meth:`handed`, :meth:`first` and :meth:`ended`.

    Args:
        connection: to the Redis that all gateways share.
        names: of the engines.
        secret: at least 32 bytes, the same in all gateways.
        clock, wall: monotonic seconds; seconds since the epoch.
    """

    def __init__(
        self,
        connection: Connection,
        router: Router,
        queue: Queue | None,
        names: Sequence[str],
        secret: bytes,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._connection, self._router, self._queue, self._clock, self._wall = connection, router, queue, clock, wall
        self._health = Health(connection, "of the gateways' messages", clock=clock)
        self._id = secrets.token_bytes(8)
        # Engines have the same numbers in all gateways, in whatever order each was given them.
        self._engines = sorted(range(len(names)), key=names.__getitem__)
        self._places = {number: place for place, number in enumerate(self._engines)}
        every = "\n".join(names[number] for number in self._engines).encode()
        self.channel = f"lpc:gateway:{blake2b(every, key=_of(secret, b'channel'), digest_size=16).hexdigest()}"
        self._cipher = AESGCM(_of(secret, b"messages"))
        self._sequence = 0
        self._numbers: dict[Sending, int] = {}
        self._count = 0
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._some = asyncio.Event()
        self._stopped = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._peers: dict[bytes, _Peer] = {}
        self._messages = metrics.peer_messages
        metrics.peers.set_function(lambda: len(self._peers))

    def sent(self, sending: Sending, *, held: bool, left: int | None) -> None:
        """Announce a request and its engine. ``left``: see `Router.sent`."""
        self._count = self._count + 1 & 0xFFFF_FFFF
        self._numbers[sending] = self._count
        prompt, name = sending.prompt, (sending.prompt.name or b"")[:255]
        flags = _STREAMED * sending.streamed | _HELD * held
        count = len(prompt.ids)
        replies = sum(1 << at for at, reply in enumerate(prompt.replies) if reply)
        self.put(
            SENT,
            self._count,
            _SENT.pack(self._places[sending.engine], flags, 0 if left is None else self._places[left] + 1, count, len(name))
            + name
            + struct.pack(f">{count}Q", *prompt.ids)
            + struct.pack(f">{count}I", *(min(size, MOST_SIZE) for size in prompt.sizes))
            + replies.to_bytes(count // 8 + 1, "big"),
        )

    def handed(self, sending: Sending) -> None:
        """Announce that the engine gets a request that was held."""
        self.put(HANDED, self._numbers.get(sending, 0))

    def first(self, sending: Sending) -> None:
        """Announce an answer's first bytes."""
        self.put(FIRST, self._numbers.get(sending, 0))

    def ended(self, sending: Sending, *, answered: bool, refused: bool, tokens: int | None, cached: int | None) -> None:
        """Announce the end of a request: see `Router.answered` and `Router.failed`."""
        flags = _ANSWERED * answered | _REFUSED * refused | _COUNTED * (tokens is not None) | _CACHED * (cached is not None)
        self.put(ENDED, self._numbers.pop(sending, 0), _ENDED.pack(flags, tokens or 0, cached or 0))

    async def run(self) -> None:
        """Exchange messages until Redis fails, or until cancelled."""
        if self._stopped:
            return
        client = self._connection.open_async(4)
        self._idle.clear()
        try:
            async with client.pubsub() as channel:
                await channel.subscribe(self.channel)
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._publish(client))
                    both.create_task(self._read(channel))
        except* ERRORS as group:
            self._health.failed(_first_of(group))
        finally:
            self._drop_all()
            try:
                with contextlib.suppress(*ERRORS):
                    await client.aclose()
            finally:
                self._idle.set()

    def take(self) -> bytes:
        """Return a batch of the waiting messages, encrypted. An empty one shows that this gateway runs."""
        parts, size = [], 0
        while self._out and size < MOST_BATCH:
            parts.append(self._out.popleft())
            size += len(parts[-1])
        self._out_bytes -= size
        if not self._out:
            self._some.clear()
        self._messages.labels("sent").inc(len(parts))
        return self._sealed(b"".join(parts))

    async def stop(self) -> None:
        """Let :meth:`run` end, after it has sent what waits; wait for it STOP_S at most.

        Before Python 3.12 `wait_for`, which redis-py calls as well, may swallow a cancellation, so that alone would not end it.
        """
        self._stopped = True
        self._some.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._idle.wait()

    async def _publish(self, client: Any) -> None:
        while self._out or not self._stopped:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._some.wait(), HELLO_S)
                await asyncio.sleep(BATCH_S)
            await client.publish(self.channel, self.take())
            self._health.answered()

    async def _read(self, channel: Any) -> None:
        while not self._stopped:
            message = await channel.get_message(ignore_subscribe_messages=True, timeout=READ_S)
            if message is not None:
                self.receive(message["data"])
            self.forget_silent()

    def receive(self, data: bytes) -> None:
        """Apply a batch of another gateway. What no gateway would have sent is counted and ignored."""
        try:
            plain = self._cipher.decrypt(data[:12], data[12:], self.channel.encode())
            sender, sequence, at = _HEAD.unpack_from(plain)
        except (InvalidTag, ValueError, struct.error):
            self._messages.labels("invalid").inc()
            return
        if sender == self._id:
            return
        peer = self._peers.get(sender)
        late = not abs(self._wall() - at) <= LATE_S
        if late or (peer is not None and sequence <= peer.sequence) or (peer is None and len(self._peers) >= MOST_PEERS):
            self._messages.labels("late" if late else "invalid").inc()
            return
        if peer is None:
            peer = self._peers[sender] = _Peer(self._clock())
        peer.latest, peer.sequence = self._clock(), sequence
        place = _HEAD.size
        try:
            while place < len(plain):
                kind, number, size = _ONE.unpack_from(plain, place)
                place += _ONE.size
                self._apply(peer, kind, number, plain[place : place + size])
                place += size
                self._messages.labels("received").inc()
        except (ValueError, IndexError, struct.error):
            self._messages.labels("invalid").inc()

    def _apply(self, peer: _Peer, kind: int, number: int, body: bytes) -> None:
        now = self._clock()
        if kind == SENT:
            self._apply_sent(peer, number, body, now)
            return
        sending = peer.open.get(number)
        if sending is None:  # it was sent before this gateway began to listen
            return
        queue = self._queue_of(sending.engine)
        if kind == HANDED and queue is not None:
            queue.passes(sending)
        elif kind == FIRST:
            self._router.first_token(sending, now)
            if queue is not None:
                queue.began(sending)
        elif kind == ENDED:
            flags, tokens, cached = _ENDED.unpack(body)
            del peer.open[number]
            reported = cached if flags & _CACHED else None
            if flags & _ANSWERED:
                self._router.answered(sending, tokens if flags & _COUNTED else None, reported)
            else:
                self._router.failed(sending, refused=bool(flags & _REFUSED))
            if queue is not None:
                queue.answered(sending, reported)
        if queue is not None:
            queue.pump(sending.engine)

    def _apply_sent(self, peer: _Peer, number: int, body: bytes, now: float) -> None:
        place, flags, left, count, named = _SENT.unpack_from(body)
        if not 0 < count <= MOST_PIECES:
            raise ValueError
        at = _SENT.size + named
        name = body[_SENT.size : at] or None
        ids = struct.unpack_from(f">{count}Q", body, at)
        sizes = struct.unpack_from(f">{count}I", body, at + 8 * count)
        bits = int.from_bytes(body[at + 12 * count :], "big")
        prompt = Prompt(ids, sizes, tuple(bool(bits >> one & 1) for one in range(count)), name)
        engine, gone = self._engines[place], None if not left else self._engines[left - 1]
        queue = self._queue_of(engine)
        sending = self._router.sent(
            *(prompt, self._router.known.match(prompt), engine, now),
            streamed=bool(flags & _STREAMED),
            held=queue is not None,
            left=gone,
        )
        peer.open[number] = sending
        if queue is not None and not flags & _HELD:
            queue.passes(sending)
        while len(peer.open) > MOST_OPEN:
            self._lose(peer.open.popitem(last=False)[1])

    def put(self, kind: int, number: int, body: bytes = b"") -> None:
        """Append a message to those that wait for Redis."""
        message = _ONE.pack(kind, number, len(body)) + body
        self._out.append(message)
        self._out_bytes += len(message)
        while self._out_bytes > MOST_WAITING:
            self._out_bytes -= len(self._out.popleft())
            self._messages.labels("dropped").inc()
        self._some.set()

    def _sealed(self, messages: bytes) -> bytes:
        self._sequence += 1
        nonce = secrets.token_bytes(12)
        head = _HEAD.pack(self._id, self._sequence, self._wall())
        return nonce + self._cipher.encrypt(nonce, head + messages, self.channel.encode())

    def forget_silent(self) -> None:
        """Forget gateways without a batch in the last SILENT_S, and their requests."""
        for sender, peer in list(self._peers.items()):
            if self._clock() - peer.latest > SILENT_S:
                del self._peers[sender]
                for sending in peer.open.values():
                    self._lose(sending)

    def _lose(self, sending: Sending) -> None:
        """Forget a request whose end is not announced. It does not wait any more, and its blocks may be cached."""
        self._router.failed(sending, refused=True)
        queue = self._queue_of(sending.engine)
        if queue is not None:
            queue.answered(sending, None)
            queue.pump(sending.engine)

    def _queue_of(self, engine: int) -> Queue | None:
        """Return the queue if it holds requests for an engine."""
        return self._queue if self._queue is not None and self._queue.knows(engine) else None

    def _drop_all(self) -> None:
        self._messages.labels("dropped").inc(len(self._out))
        self._out.clear()
        self._out_bytes = 0
        self._some.clear()


def _of(secret: bytes, purpose: bytes) -> bytes:
    return blake2b(purpose, key=blake2b(secret, digest_size=32).digest(), digest_size=32).digest()


def _first_of(group: BaseExceptionGroup[Any]) -> Exception:
    found: Any = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    error: Exception = found
    return error
