"""Helpers for tests of the Redis store: a store, its messages for an unusable Redis, and a proxy that loses answers."""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest

from eviction_client.errors import StoreError
from eviction_client.stores import BlockHash, BlockStore
from eviction_client.stores.base import Turned
from eviction_client.stores.claims import shared_claim
from eviction_client.stores.namespace import Namespace
from eviction_client.stores.redis import RedisStore
from lpc.wire.redis_connection import Connection
from tests.eventually import until
from tests.relay import Relay

NAMESPACE = Namespace("sha256_cbor", "0", 16, "a-model")
A, B = 1, 2
"""Tags of conversations."""
START: Final = 1.75e9
"""Time from which those of the tests count, seconds since the epoch."""
GAP_S: Final = 100.0
BLOCKS = [BlockHash(bytes([n]) * 32) for n in range(1, 9)]


def turn(conversation: int, at: float, log_odds: float = 0.0) -> Turned:
    """Return a turn that ended ``at`` seconds from START, whose claim is the highest."""
    end = START + at
    return Turned(conversation, end, shared_claim(conversation, log_odds, end, 1, predicted=True, holders=1))


def record(store: BlockStore[BlockHash], conversation: int, blocks: Sequence[BlockHash], at: float) -> None:
    """Record a turn that ended ``at`` seconds from START."""
    store.record(blocks, turn(conversation, at), GAP_S)


def ends(store: BlockStore[BlockHash], blocks: Sequence[BlockHash]) -> list[float | None]:
    """Return the times of the blocks' claims, from START."""
    return [None if claim is None else claim.at - START for claim in store.claims_now(blocks)]


@contextlib.contextmanager
def storing(url: str, namespace: Namespace = NAMESPACE, **options: Any) -> Iterator[RedisStore]:
    own = {name: options.pop(name) for name in ("shards", "max_pending_blocks", "backoff", "clock") if name in options}
    store = RedisStore(Connection(url, **options), namespace, **own)
    try:
        yield store
    finally:
        store.close()


def flushed(store: RedisStore, timeout: float = 40.0) -> bool:
    """Flush until all records are in Redis: after a failure the store pauses."""
    return until(store.flush, timeout)


class LosingProxy(Relay):
    """A proxy between a client and Redis. On demand it forwards a request but closes the connection before the answer."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.target = ("127.0.0.1", port)
        self.lose_answers_to: bytes | None = None
        self.lost = 0

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self.target) as server, contextlib.suppress(OSError):
            while request := client.recv(1 << 20):
                server.sendall(request)
                answer = server.recv(1 << 20)
                if self.lose_answers_to is not None and self.lose_answers_to in request:
                    self.lose_answers_to = None
                    self.lost += 1
                    return
                client.sendall(answer)


def refusal(url: str, **options) -> str:
    with storing(url, timeout_s=0.5, **options) as store:
        record(store, A, BLOCKS, 1.0)
        with pytest.raises(StoreError) as caught:
            store.check()
        assert not store.flush() and store.failures
        assert not store.healthy
        assert store.claims(BLOCKS) == {}
    return str(caught.value)
