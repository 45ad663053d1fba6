"""Claims of conversations on blocks, shared by the fleet through Redis (6.2 or later), single or Cluster.

Records are written in pipelines of at most BLOCKS_AT_ONCE blocks, with one command for each shard. After a failure the store
pauses, from 50 ms, doubling up to 5 s. Until then records wait in a bounded queue that drops the oldest first. A record that is
written twice changes nothing.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from redis.backoff import AbstractBackoff

from eviction_client.block_hash import BlockHash
from eviction_client.errors import StoreError
from eviction_client.pace import in_pieces, pause
from eviction_client.stores.base import Turned
from eviction_client.stores.claims import AHEAD_S, SharedClaim, forgotten_below
from eviction_client.stores.layout import (
    LIVES_S,
    MEMBER_BYTES,
    RECORD_SCRIPT,
    TRIM_SCRIPT,
    Layout,
    claim_of,
    members,
    oldest,
    score,
    turn,
)
from eviction_client.stores.namespace import Namespace
from lpc.wire.redis_connection import ERRORS, Connection, evaluate
from lpc.wire.redis_health import Health, cause_of, explain

MAX_PENDING_BLOCKS: Final = 200_000
"""Bound of recorded blocks that wait: some minutes of a busy engine."""
BLOCKS_AT_ONCE: Final = 4096
"""Blocks of one pipeline: each script of four shards then holds Redis for about 2 ms."""
TRIM_CHUNK: Final = 4096
"""Most blocks that one script removes: Redis serves no other client while it runs (about 1 ms per 1,000 blocks)."""


class RedisStore:
    """Shared claims of one namespace in Redis. Thread-safe; meant for one thread, since calls block each other.

    Args:
        connection: to the server or Cluster; opened on first use.
        namespace: namespace of the claims; engines with equal namespaces share them.
        shards: number of keys over which the blocks are spread; equal in the whole fleet.
        max_pending_blocks: bound of recorded blocks that wait.
        backoff: computes the pause, in seconds, after a number of consecutive failures.
        clock: monotonic seconds.

    Attributes:
        failures: failed attempts to use Redis.
        written, dropped: recorded blocks that Redis accepted, and that were dropped.
        refused: see :meth:`BlockStore.refused`.
    """

    def __init__(
        self,
        connection: Connection,
        namespace: Namespace,
        *,
        shards: int = 4,
        max_pending_blocks: int = MAX_PENDING_BLOCKS,
        backoff: AbstractBackoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failures = self.written = self.dropped = self.refused = 0
        self._connection = connection
        self._health = Health(connection, "of shared claims", backoff=backoff, clock=clock)
        self._layout = Layout(namespace.digest, shards)
        self._records: deque[tuple[Sequence[BlockHash], Turned, float]] = deque()
        self._pending = 0
        self._max_pending = max_pending_blocks
        self._lock = threading.Lock()
        self._closed = False

    def record(self, blocks: Sequence[BlockHash], turned: Turned, gap_s: float) -> None:
        """See :meth:`BlockStore.record`."""
        if self._closed:
            return
        with self._lock:
            self._records.extend((piece, turned, gap_s) for piece in in_pieces(blocks))
            self._pending += len(blocks)
            while self._pending > self._max_pending:
                dropped = len(self._records.popleft()[0])
                self._pending -= dropped
                self.dropped += dropped

    def flush(self) -> bool:
        """See :meth:`BlockStore.flush`."""
        if self._records:
            self._use(self._write)
        return not self._records

    def claims(self, blocks: Sequence[BlockHash]) -> dict[BlockHash, SharedClaim]:
        """See :meth:`BlockStore.claims`."""
        found = self._use(lambda client: self._look_up(client, blocks)) or []
        return {block: claim for block, claim in zip(blocks, found, strict=False) if claim is not None}

    def trim(self, now: float) -> None:
        """See :meth:`BlockStore.trim`. Removes in chunks, so that no other client of Redis waits for long."""
        self._use(lambda client: self._trim(client, forgotten_below(now)))

    def claims_now(self, blocks: Sequence[BlockHash]) -> list[SharedClaim | None]:
        """See :meth:`BlockStore.claims_now`."""
        found: list[SharedClaim | None] = self._now(lambda client: self._look_up(client, blocks))
        return found

    def check(self) -> None:
        """Run the store's commands on keys of its own, which expire after a second.

        Raises:
            StoreError: Redis is unavailable or refuses a command. The message contains no password.
        """
        key = replace(self._layout, namespace=f"{self._layout.namespace}:check", shards=1).key(0)

        def probe(client: Any) -> None:
            client.execute_command("ZMSCORE", key, "x")
            block = b"\0" * MEMBER_BYTES
            client.execute_command("EVAL", RECORD_SCRIPT, 1, key, 1000, MEMBER_BYTES, 1.0, AHEAD_S, 0, 0, block)
            client.execute_command("EVAL", TRIM_SCRIPT, 1, key, "inf", 1)

        self._now(probe)

    def close(self) -> None:
        """See :meth:`BlockStore.close`. Drops records that cannot be written."""
        self.flush()
        with self._lock:
            self._closed = True
            self._connection.close()

    @property
    def healthy(self) -> bool:
        """See :meth:`BlockStore.healthy`."""
        return self._health.healthy

    @property
    def pending_blocks(self) -> int:
        """Number of recorded blocks that wait."""
        return self._pending

    def _use(self, work: Callable[[Any], Any]) -> Any:
        """Call ``work`` with the Redis client and return its result; None while Redis is unavailable."""
        with self._lock:
            if self._closed or self._health.resting:
                return None
            try:
                found = work(self._connection.client)
            except ERRORS as error:
                self.failures += 1
                self._connection.close()
                self._health.failed(error)
                return None
            except Exception:  # a bug: drop the records, which may have caused it
                self._records.clear()
                self._pending = 0
                raise
            self._health.answered()
            return found

    def _now(self, work: Callable[[Any], Any]) -> Any:
        """Call ``work`` and return its result, even during the pause after a failure. Raises StoreError."""
        with self._lock:
            try:
                return work(self._connection.client)
            except ERRORS as error:
                self._connection.close()
                raise StoreError(explain(error, self._connection)) from None

    def _write(self, client: Any) -> None:
        while self._records:
            count, blocks = self._next()
            by_shard, gap_s = self._commands(count), self._records[count - 1][2]
            commands = [
                (1, key, int(LIVES_S * 1000), MEMBER_BYTES, round(gap_s, 3), AHEAD_S, *runs) for key, runs in by_shard.items()
            ]
            if commands:
                evaluate(client, RECORD_SCRIPT, commands)
            self.written += blocks
            self._pending -= blocks
            for _ in range(count):
                self._records.popleft()

    def _next(self) -> tuple[int, int]:
        """Return the number of records, and of their blocks, that the next pipeline writes."""
        count = total = 0
        for blocks, _, _ in self._records:
            if count and total + len(blocks) > BLOCKS_AT_ONCE:
                break
            count, total = count + 1, total + len(blocks)
        return count, total

    def _commands(self, count: int) -> dict[str, list[int | bytes]]:
        """Return turns, claims and members of the oldest records, in their order, by key."""
        layout = self._layout
        found: dict[str, list[int | bytes]] = {}
        for blocks, turned, _ in islice(self._records, count):
            names = members(blocks)
            own, highest = turn(turned), score(turned.highest)
            for shard, indices in enumerate(layout.by_shard(blocks)):
                if indices:
                    found.setdefault(layout.key(shard), []).extend((own, highest, b"".join([names[i] for i in indices])))
            pause()
        return found

    def _look_up(self, client: Any, blocks: Sequence[BlockHash]) -> list[SharedClaim | None]:
        """Return the claim of each block, None if unknown; count and leave out those that no engine would have written."""
        names, now = members(blocks), time.time()
        lookups = [(shard, indices) for shard, indices in enumerate(self._layout.by_shard(blocks)) if indices]
        found: list[SharedClaim | None] = [None] * len(blocks)
        if not lookups:
            return found
        commands = client.pipeline(transaction=False)
        for shard, indices in lookups:
            commands.execute_command("ZMSCORE", self._layout.key(shard), *(names[i] for i in indices))
        for (_, indices), stored in zip(lookups, commands.execute(raise_on_error=False), strict=True):
            if isinstance(stored, Exception):
                if cause_of(stored) != "WRONGTYPE":
                    raise stored
                continue  # the next record replaces the key
            for i, value in zip(indices, stored, strict=True):
                if value is not None:
                    found[i] = claim_of(float(value), now)
                    self.refused += found[i] is None
        return found

    def _trim(self, client: Any, threshold: float) -> None:
        shards: Sequence[int] = range(self._layout.shards)
        while shards:
            keys = [(1, self._layout.key(shard), oldest(threshold), TRIM_CHUNK) for shard in shards]
            removed = evaluate(client, TRIM_SCRIPT, keys)
            shards = [shard for shard, count in zip(shards, removed, strict=True) if count == TRIM_CHUNK]
