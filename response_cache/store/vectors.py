"""The encrypted vectors of a scope in Redis, and the stream that keeps the sidecars' in-memory indexes in sync."""

import struct
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from lpc.wire.redis_reach import RedisReach
from response_cache.keys.canonical import NAME_BYTES, EntryId, Scope
from response_cache.keys.sealing import Keyring, Unsealable
from response_cache.store import layout
from response_cache.store.store import ERASING_S

_HEAD: Final = struct.Struct(f">d{NAME_BYTES}sQ")
SCANNED_AT_ONCE: Final = 1000
READ_AT_ONCE: Final = 1000
START: Final = "0-0"


class Vector(NamedTuple):
    """A question's vector: ``values`` are little-endian fp16, ``generation`` is that of its scope when it was stored."""

    entry: EntryId
    partition: bytes
    expires_at: float
    generation: int
    values: bytes


class Changes(NamedTuple):
    """Changes of a scope since a position in its stream.

    Attributes:
        position: place at which to continue.
        generation: the scope's current generation; None if it has none.
        added: new vectors.
        removed: entries that were removed.
        complete: False if changes were missed, so that all vectors must be read again.
    """

    position: str
    generation: str | None
    added: Sequence[Vector]
    removed: Sequence[EntryId]
    complete: bool


def seal(vector: Vector, scope: Scope, keys: Keyring) -> bytes:
    """Return a vector as an encrypted record."""
    plain = _HEAD.pack(vector.expires_at, vector.partition, vector.generation) + vector.values
    return keys.seal(plain, b"vector" + scope + vector.entry)


def unseal(record: bytes, scope: Scope, entry: EntryId, keys: Keyring) -> Vector:
    """Return the vector of a record. Raises Unsealable."""
    plain = keys.open(record, b"vector" + scope + entry)
    if len(plain) < _HEAD.size or (len(plain) - _HEAD.size) % 2:
        raise Unsealable
    expires_at, partition, generation = _HEAD.unpack_from(plain)
    return Vector(entry, partition, expires_at, generation, plain[_HEAD.size :])


class Vectors:
    """The vectors of all scopes in one Redis. ``encoder`` returns the id of the current encoder."""

    def __init__(self, redis: RedisReach, encoder: Callable[[], str]) -> None:
        self._redis = redis
        self._encoder = encoder

    async def position(self, scope: Scope) -> tuple[str, str | None]:
        """Return the end of a scope's stream and its generation; call it before :meth:`read`. Raises RedisFailed."""
        stream, key = layout.key(scope, "x"), layout.key(scope, "g")
        last, generation = await self._redis.ask_all(lambda pipe: pipe.xrevrange(stream, count=1).get(key))
        return last[0][0].decode() if last else START, _generation(generation)

    async def read(self, scope: Scope, keys: Keyring) -> AsyncIterator[list[Vector]]:
        """Yield all vectors of a scope in batches, without those that cannot be decrypted. Raises RedisFailed."""
        key = layout.key(scope, "v", self._encoder())
        cursor = 0
        while True:
            scan = partial(_scan, key=key, cursor=cursor)
            cursor, records = await self._redis.ask(scan, ERASING_S)
            yield self._opened(scope, records.items(), keys)
            if not cursor:
                return

    async def changes(self, scope: Scope, position: str, keys: Keyring) -> Changes:
        """Return the changes since a position. Raises RedisFailed."""
        stream, hashed = layout.key(scope, "x"), layout.key(scope, "v", self._encoder())
        generation, oldest, newest, events = await self._redis.ask_all(
            lambda pipe: (
                pipe.get(layout.key(scope, "g"))
                .xrange(stream, count=1)
                .xrevrange(stream, count=1)
                .xrange(stream, position, count=READ_AT_ONCE)  # not "(", which Redis refuses with the last possible id
            )
        )
        events = [event for event in events if event[0] != position.encode()]
        # Nothing is missing if the oldest event that remains is not newer than the position. If the newest is older, the stream
        # has begun again with lower ids.
        complete = position == START or not oldest or _order(oldest[0][0]) <= _order(position.encode()) <= _order(newest[0][0])
        added = {fields[b"a"]: None for _, fields in events if b"a" in fields}
        removed = [fields[b"d"] for _, fields in events if b"d" in fields]
        records: Sequence[bytes | None] = []
        if added:
            records = await self._redis.ask(lambda client: client.hmget(hashed, list(added)), ERASING_S)
        pairs = [(name, record) for name, record in zip(added, records, strict=True) if record is not None]
        gone = layout.entries(name for name in removed if name not in added)
        last = events[-1][0].decode() if events else position
        return Changes(last, _generation(generation), self._opened(scope, pairs, keys), gone, complete)

    def _opened(self, scope: Scope, records: Any, keys: Keyring) -> list[Vector]:
        found = []
        for name, record in records:
            try:
                found.append(unseal(record, scope, EntryId(layout.name(name)), keys))
            except (Unsealable, ValueError):
                continue
        return found


async def _scan(client: Any, key: str, cursor: int) -> tuple[int, dict[bytes, bytes]]:
    found: tuple[int, dict[bytes, bytes]] = await client.hscan(key, cursor, count=SCANNED_AT_ONCE)
    return found


def _generation(value: bytes | None) -> str | None:
    """Return the number of a scope's generation. It is not verified here, but before an entry is served."""
    return None if value is None else value.partition(b":")[0].decode("ascii", "replace")


def _order(position: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = position.partition(b"-")
    return int(milliseconds), int(sequence or 0)
