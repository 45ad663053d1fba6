"""Scores shared by the fleet through Redis (6.2 or later), single or Cluster.

The scheduler only appends to bounded queues; one background thread talks to Redis in batches, one pipeline each: first the
newest look-ahead, then what was recorded, then trimming. An unreachable, silent, locked, full or read-only Redis costs
answers, never time: the batch stays and is tried again with exponential backoff, what does not fit any more is
dropped oldest first and counted, and each change of state is one line in the log.

Make a store after the engine has forked: threads do not survive a fork.
"""

import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import redis
from redis.backoff import AbstractBackoff, EqualJitterBackoff

from eviction_client.errors import StoreError
from eviction_client.score import REMEMBERED_S, forgotten_below
from eviction_client.stores.base import SHARED, BlockHash, ConversationId, StoreCounters
from eviction_client.stores.connection import ERRORS, NO_FILES, PASSING, address, connect, evaluate, pipeline
from eviction_client.stores.diagnosis import explain
from eviction_client.stores.layout import MEMBER_BYTES, RECORD_SCRIPT, TRIM_SCRIPT, UNIT, Layout, floor, members
from eviction_client.stores.namespace import Namespace
from lpc.model.returns import MAX_CREDIT_S
from lpc.wire.certificates import CertificateFiles

logger = logging.getLogger(__name__)

BATCH_BLOCKS: Final = 8192
"""Most blocks of one pipeline: Redis serves nobody else while it runs a shard's part of it (about 1 ms per 1,000 blocks)."""
TRIM_CHUNK: Final = 4096
"""Most blocks that one script removes, for the same reason."""
RETRY_FOR_S: Final = 600.0
"""Age at which a batch that cannot be written is dropped. Twice as long Redis remembers what it has applied."""
GATHER_S: Final = 0.02
"""Pause between two batches, in which records gather: fewer and larger commands under load."""
BACKOFF_CAP_S: Final = 5.0
BACKOFF_BASE_S: Final = 0.05
LIVES_S: Final = 2 * MAX_CREDIT_S + REMEMBERED_S
"""Keys of Redis expire when nobody wrote to them for so long: the highest score has been trimmed by then, hints of up to
MAX_CREDIT_S included."""


@dataclass(frozen=True, slots=True)
class _Record:
    conversation: ConversationId
    blocks: Sequence[BlockHash]
    score: float


@dataclass(slots=True)
class _Batch:
    """Commands of one batch number: (key to route by, arguments of EVALSHA after the script), and what they carry."""

    commands: list[tuple[Any, ...]]
    blocks: int
    since: float


class RedisStore:
    """Scores of one namespace in Redis. Thread-safe.

    Args:
        url: redis://, rediss:// or unix:// URL, with user and password where needed.
        namespace: what engines must agree on to share scores.
        cluster: the URL names a node of a Redis Cluster.
        shards: keys over which the blocks are spread; equal in the whole fleet.
        timeout_s: time for a connection and for one answer.
        files: certificates for rediss://; read at each connection.
        max_pending_blocks: recorded blocks that may wait.
        gather_s: pause between two batches.
        backoff: seconds to wait after so many failures in a row; by default 50 ms that double up to 5 s.

    Raises:
        ValueError: the URL is malformed.
    """

    def __init__(
        self,
        url: str,
        namespace: Namespace,
        *,
        cluster: bool = False,
        shards: int = 4,
        timeout_s: float = 1.0,
        files: CertificateFiles = NO_FILES,
        max_pending_blocks: int = 200_000,
        gather_s: float = GATHER_S,
        backoff: AbstractBackoff | None = None,
    ) -> None:
        address(url)
        self._url = url
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._files = files
        self._max_pending = max_pending_blocks
        self._gather_s = gather_s
        self._layout = Layout(namespace.digest, shards, secrets.token_hex(8))
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._records: deque[_Record] = deque()
        self._pending = 0
        self._batch: _Batch | None = None
        self._batch_number = 0
        self._question: Sequence[BlockHash] = ()
        self._answers: dict[BlockHash, float] = {}
        self._threshold: float | None = None
        self._counters = StoreCounters()
        self._healthy: bool | None = None
        self._closing = False
        self._backoff = backoff or EqualJitterBackoff(cap=BACKOFF_CAP_S, base=BACKOFF_BASE_S)
        self._client: Any = None
        # Of a Cluster, as last seen: the URL's own node may be the one that died.
        self._nodes: list[tuple[str, int]] = []
        self._thread = threading.Thread(target=self._run, name="lpc-redis", daemon=True)
        self._thread.start()

    def record(self, conversation: ConversationId, blocks: Sequence[BlockHash], score: float) -> None:
        """See :meth:`MetadataStore.record`. Costs the caller microseconds; the rest happens in the background."""
        if self._closing:
            return
        try:
            blocks_count = len(blocks)
            usable = math.isfinite(score) and isinstance(conversation, str) and conversation != SHARED
        except TypeError:
            usable = False
        if not usable:
            self._count(rejected=1)
            return
        if blocks_count == 0:
            return
        with self._lock:
            self._records.append(_Record(conversation, blocks, score))
            self._pending += blocks_count
            dropped = 0
            while self._pending > self._max_pending and self._records:
                lost = len(self._records.popleft().blocks)
                self._pending -= lost
                dropped += lost
            counters = self._counters
            self._counters = replace(counters, recorded=counters.recorded + blocks_count, dropped=counters.dropped + dropped)
        self._notify()

    def look_ahead(self, blocks: Sequence[BlockHash]) -> None:
        """See :meth:`MetadataStore.look_ahead`."""
        if not self._closing:
            self._question = blocks
            self._notify()

    def take_answers(self) -> dict[BlockHash, float]:
        """See :meth:`MetadataStore.take_answers`."""
        if not self._answers:
            return {}
        with self._lock:
            answers, self._answers = self._answers, {}
            return answers

    def trim(self, now: float) -> None:
        """See :meth:`MetadataStore.trim`. Chunk by chunk, so that no other client of Redis waits for long."""
        if not self._closing:
            self._threshold = forgotten_below(now)
            self._notify()

    def scores(self, blocks: Sequence[BlockHash]) -> list[float | None]:
        """See :meth:`MetadataStore.scores`. Scores are rounded down to 1/32 s."""
        try:
            client = self._connect()
            try:
                return self._look_up(client, blocks)
            finally:
                client.close()
        except ERRORS as error:
            raise self._explain(error) from None

    def check(self) -> None:
        """Use Redis as the store does, on keys of its own that live for a second.

        Raises:
            StoreError: one sentence on what is wrong and what to do. No password is in it.
        """
        probe = replace(self._layout, namespace=f"{self._layout.namespace}:check", shards=1)
        arguments = (1, 1000, 1000, UNIT, MEMBER_BYTES, 0.0, 0.0, b"\0" * MEMBER_BYTES)
        key = probe.scores_key(0)
        try:
            client = self._connect()
            try:
                client.execute_command("ZMSCORE", key, "x")
                client.execute_command("EVAL", RECORD_SCRIPT, 2, key, probe.batch_key(0), *arguments)
                client.execute_command("EVAL", TRIM_SCRIPT, 1, key, "inf", 1)
            finally:
                client.close()
        except ERRORS as error:
            raise self._explain(error) from None

    def flush(self, timeout: float) -> bool:
        """See :meth:`MetadataStore.flush`. Look-aheads and trimming are waited for as well."""
        self._notify()
        with self._settled:
            return self._settled.wait_for(lambda: not self._busy(), timeout)

    def close(self, timeout: float = 1.0) -> None:
        """See :meth:`MetadataStore.close`. What cannot be written in time is dropped."""
        if self._closing:
            return
        self.flush(timeout)
        self._closing = True
        self._wake.set()
        self._thread.join(self._timeout_s + 1.0)

    @property
    def healthy(self) -> bool:
        """See :meth:`MetadataStore.healthy`."""
        return self._healthy is True

    @property
    def counters(self) -> StoreCounters:
        """See :meth:`MetadataStore.counters`."""
        return self._counters

    @property
    def pending_blocks(self) -> int:
        """Recorded blocks that wait to be written."""
        return self._pending

    # Below: the background thread.

    def _notify(self) -> None:
        if not self._wake.is_set():
            self._wake.set()

    def _busy(self) -> bool:
        return bool(self._records or self._batch or self._question or self._threshold is not None)

    def _run(self) -> None:
        failures = 0
        while True:
            # Cleared before looking, set after leaving something to be seen: no wake-up is lost.
            self._wake.clear()
            if self._closing:
                break
            if not self._busy():
                with self._settled:
                    self._settled.notify_all()
                self._wake.wait()
                continue
            try:
                if self._client is None:
                    self._client = self._connect()
                self._work(self._client)
            except Exception as error:
                # Whatever it is must not end the thread; what is not an error of Redis or of the network is logged as ours.
                self._failed(error, failures)
                failures = min(failures + 1, 16)
                self._pause(self._backoff.compute(failures))
            else:
                failures = 0
                self._succeeded()
                if not self._busy():
                    with self._settled:
                        self._settled.notify_all()
                if not self._closing and not self._question:
                    time.sleep(self._gather_s)
        self._disconnect()

    def _pause(self, seconds: float) -> None:
        """Sleep, but notice within 50 ms that the store is being closed."""
        until = time.monotonic() + seconds
        while not self._closing and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))

    def _work(self, client: Any) -> None:
        question = self._question
        if question:
            self._answer(client, question)
        batch = self._batch or self._next_batch()
        if batch is not None:
            self._write(client, batch)
        threshold = self._threshold
        if threshold is not None:
            self._trim(client, threshold)

    def _answer(self, client: Any, question: Sequence[BlockHash]) -> None:
        found: list[float | None] = []
        try:
            found = self._look_up(client, question)
        except (TypeError, AttributeError, ValueError):
            self._count(rejected=1)
        known = {block: score for block, score in zip(question, found, strict=False) if score is not None}
        with self._lock:
            if self._question is question:
                self._question = ()
            self._answers = known
            counters = self._counters
            self._counters = replace(counters, looked_up=counters.looked_up + len(found), known=counters.known + len(known))

    def _look_up(self, client: Any, blocks: Sequence[BlockHash]) -> list[float | None]:
        names = members(blocks)
        asked = [(shard, indices) for shard, indices in enumerate(self._layout.by_shard(blocks)) if indices]
        commands = pipeline(client)
        for shard, indices in asked:
            commands.execute_command("ZMSCORE", self._layout.scores_key(shard), *(names[i] for i in indices))
        found: list[float | None] = [None] * len(blocks)
        if not asked:
            return found
        for (_, indices), stored in zip(asked, commands.execute(), strict=True):
            for i, value in zip(indices, stored, strict=True):
                found[i] = None if value is None else floor(float(value))
        return found

    def _next_batch(self) -> _Batch | None:
        """Turn what was recorded first into commands, one per shard."""
        layout = self._layout
        arguments: list[list[Any]] = [[] for _ in range(layout.shards)]
        blocks = rejected = 0
        while blocks < BATCH_BLOCKS:
            with self._lock:
                if not self._records:
                    break
                record = self._records.popleft()
                self._pending -= len(record.blocks)
            try:
                names = members(record.blocks)
                shards = layout.by_shard(record.blocks)
                owner, score = layout.owner(record.conversation), floor(record.score)
                blobs = [b"".join([names[i] for i in indices]) for indices in shards]
            except (TypeError, AttributeError, ValueError):
                rejected += 1
                continue
            blocks += len(names)
            for shard, blob in enumerate(blobs):
                if blob:
                    arguments[shard] += (owner, score, blob)
        if rejected:
            self._count(rejected=rejected)
        if not blocks:
            return None
        self._batch_number += 1
        head = (self._batch_number, int(2 * RETRY_FOR_S * 1000), int(LIVES_S * 1000), UNIT, MEMBER_BYTES)
        commands = [
            (2, layout.scores_key(shard), layout.batch_key(shard), *head, *rest) for shard, rest in enumerate(arguments) if rest
        ]
        self._batch = _Batch(commands, blocks, time.monotonic())
        return self._batch

    def _write(self, client: Any, batch: _Batch) -> None:
        try:
            evaluate(client, RECORD_SCRIPT, batch.commands)
        except PASSING:
            if time.monotonic() - batch.since > RETRY_FOR_S:
                self._batch = None
                self._count(dropped=batch.blocks)
            raise
        except Exception:
            self._batch = None
            self._count(dropped=batch.blocks)
            raise
        self._batch = None
        self._count(written=batch.blocks)

    def _trim(self, client: Any, threshold: float) -> None:
        shards = list(range(self._layout.shards))
        while shards and not self._closing:
            removed = evaluate(
                client, TRIM_SCRIPT, [(1, self._layout.scores_key(shard), threshold, TRIM_CHUNK) for shard in shards]
            )
            self._count(trimmed=sum(removed))
            shards = [shard for shard, count in zip(shards, removed, strict=True) if count == TRIM_CHUNK]
        with self._lock:
            if self._threshold == threshold:
                self._threshold = None

    def _connect(self) -> Any:
        client = connect(
            self._url, cluster=self._cluster, timeout_s=self._timeout_s, files=self._files, known_nodes=self._nodes
        )
        self._remember_nodes(client)
        return client

    def _remember_nodes(self, client: Any) -> None:
        if self._cluster:
            self._nodes = [(node.host, node.port) for node in client.get_nodes()] or self._nodes

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            self._remember_nodes(client)
            try:
                client.close()
            except ERRORS:
                logger.debug("closing the connection to Redis failed", exc_info=True)

    def _succeeded(self) -> None:
        if self._healthy is False:
            logger.info("Redis is back; sharing scores again")
            self._count(reconnects=1)
        self._healthy = True

    def _failed(self, error: Exception, failures: int) -> None:
        self._count(failures=1)
        # A Cluster client learns of moved slots by itself; of dead nodes it is told by the others here.
        if failures or isinstance(error, (redis.ConnectionError, redis.TimeoutError, OSError)):
            self._disconnect()
        if self._healthy is not False:
            if isinstance(error, ERRORS):
                logger.warning("%s Scores are not shared until then; serving goes on.", self._explain(error))
            else:
                logger.error("scores are not shared for now, serving goes on", exc_info=error)
        self._healthy = False

    def _explain(self, error: Exception) -> StoreError:
        return explain(error, address(self._url), self._timeout_s)

    def _count(self, **more: int) -> None:
        with self._lock:
            self._counters = replace(
                self._counters, **{name: getattr(self._counters, name) + count for name, count in more.items()}
            )
