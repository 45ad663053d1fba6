"""Scores shared by the fleet through Redis (6.2 or later), single or Cluster.

The scheduler only appends to bounded queues; one background thread talks to Redis in batches, one pipeline each: first the
newest look-ahead, then what was recorded, then trimming. An unreachable, silent, locked, full or read-only Redis costs
answers, never time: the batch stays and is tried again with exponential backoff, what does not fit any more is
dropped oldest first and counted, and each change of state is one line in the log.

Make a store after the engine has forked: threads do not survive a fork.
"""

import logging
import secrets
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import redis
from redis.backoff import AbstractBackoff, EqualJitterBackoff

from eviction_client.errors import StoreError
from eviction_client.score import forgotten_below
from eviction_client.stores import commands
from eviction_client.stores.base import BlockHash, ConversationId, StoreCounters
from eviction_client.stores.diagnosis import explain
from eviction_client.stores.layout import RECORD_SCRIPT, Layout
from eviction_client.stores.namespace import Namespace
from eviction_client.stores.outbox import Batch, Outbox
from eviction_client.stores.tally import Tally
from lpc.wire.bugs import log_bug
from lpc.wire.certificates import CertificateFiles
from lpc.wire.redis_connection import AWAY, ERRORS, NO_FILES, PASSING, Connection, evaluate
from lpc.wire.redis_refusals import Refusals
from lpc.wire.redis_url import NOBODY, RedisLogin, RedisUrl

logger = logging.getLogger(__name__)

GATHER_S: Final = 0.02
"""Pause between two batches, in which records gather: fewer and larger commands under load."""
BACKOFF_CAP_S: Final = 5.0
BACKOFF_BASE_S: Final = 0.05


class RedisStore:
    """Scores of one namespace in Redis. Thread-safe.

    Args:
        url: redis://, rediss:// or unix:// URL, user and password in it percent-encoded.
        namespace: what engines must agree on to share scores.
        cluster: the URL names a node of a Redis Cluster.
        shards: keys over which the blocks are spread; equal in the whole fleet.
        timeout_s: time for a connection and for one answer.
        files: certificates for rediss://; read at each connection.
        login: user and password, where they are not in the URL.
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
        login: RedisLogin = NOBODY,
        max_pending_blocks: int = 200_000,
        gather_s: float = GATHER_S,
        backoff: AbstractBackoff | None = None,
    ) -> None:
        self._where = RedisUrl.parse(url).where
        self._timeout_s = timeout_s
        self._connection = Connection(url, cluster=cluster, timeout_s=timeout_s, files=files, login=login)
        self._gather_s = gather_s
        self._layout = Layout(namespace.digest, shards, secrets.token_hex(8))
        self._lock = threading.Lock()
        self._settled = threading.Condition(self._lock)
        self._wake = threading.Event()
        self._tally = Tally()
        self._refusals = Refusals("of the engines", self._where, lambda _cause: self._tally.add(failures=1))
        self._outbox = Outbox(self._layout, max_pending_blocks, self._tally)
        self._question: tuple[Sequence[BlockHash], bool] | None = None
        self._answers: dict[BlockHash, float] = {}
        self._threshold: float | None = None
        self._healthy: bool | None = None
        self._reason = ""
        self._closing = False
        self._backoff = backoff or EqualJitterBackoff(cap=BACKOFF_CAP_S, base=BACKOFF_BASE_S)
        self._thread = threading.Thread(target=self._run, name="lpc-redis", daemon=True)
        self._thread.start()

    def record(self, conversation: ConversationId, blocks: Sequence[BlockHash], score: float) -> None:
        """See :meth:`MetadataStore.record`. Costs the caller microseconds; the rest happens in the background."""
        if not self._closing and self._outbox.put(conversation, blocks, score):
            self._notify()

    def look_ahead(self, blocks: Sequence[BlockHash], *, shared: bool = False) -> None:
        """See :meth:`MetadataStore.look_ahead`."""
        if not self._closing and blocks:
            self._question = blocks, shared
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
            client = self._connection.open()
            try:
                return commands.look_up(client, self._layout, blocks, _raise)
            finally:
                client.close()
        except ERRORS as error:
            raise self._explain(error) from None

    def check(self) -> None:
        """Use Redis as the store does, on keys of its own that live for a second.

        Raises:
            StoreError: one sentence on what is wrong and what to do. No password is in it.
        """
        try:
            client = self._connection.open()
            try:
                commands.probe(client, self._layout)
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
        return self._tally.counters

    @property
    def pending_blocks(self) -> int:
        """Recorded blocks that wait to be written."""
        return self._outbox.pending_blocks

    # Below: the background thread.

    def _notify(self) -> None:
        if not self._wake.is_set():
            self._wake.set()

    def _busy(self) -> bool:
        return bool(self._outbox or self._question or self._threshold is not None)

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
                self._work(self._connection.client)
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
        self._connection.close()

    def _pause(self, seconds: float) -> None:
        """Sleep, but notice within 50 ms that the store is being closed."""
        until = time.monotonic() + seconds
        while not self._closing and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))

    def _work(self, client: Any) -> None:
        question = self._question
        if question:
            self._answer(client, question)
        batch = self._outbox.batch()
        if batch is not None:
            self._write(client, batch)
        threshold = self._threshold
        if threshold is not None:
            self._trim(client, threshold)

    def _answer(self, client: Any, question: tuple[Sequence[BlockHash], bool]) -> None:
        blocks, shared = question
        found: list[float | None] = []
        try:
            found = commands.look_up(client, self._layout, blocks, self._refused, shared=shared)
        except (TypeError, AttributeError, ValueError) as error:
            self._tally.add(bugs=1)
            log_bug(logger, "the look-ahead in Redis", error)
        known = {block: score for block, score in zip(blocks, found, strict=False) if score is not None}
        self._tally.add(looked_up=len(found), known=len(known))
        with self._lock:
            if self._question is question:
                self._question = None
            self._answers = known

    def _refused(self, error: Exception) -> None:
        """Count a shard that cannot be read; raise an error that means that Redis is away."""
        if isinstance(error, AWAY) or not isinstance(error, redis.ResponseError):
            raise error
        self._refusals.note(error)

    def _write(self, client: Any, batch: Batch) -> None:
        try:
            evaluate(client, RECORD_SCRIPT, batch.commands)
        except PASSING:
            if batch.stale:
                self._outbox.settle(written=False)
            raise
        except Exception:
            self._outbox.settle(written=False)
            raise
        self._outbox.settle(written=True)

    def _trim(self, client: Any, threshold: float) -> None:
        shards: Sequence[int] = range(self._layout.shards)
        while shards and not self._closing:
            removed, shards = commands.trim(client, self._layout, shards, threshold)
            self._tally.add(trimmed=removed)
        with self._lock:
            if self._threshold == threshold:
                self._threshold = None

    def _succeeded(self) -> None:
        if self._healthy is False:
            logger.info("Redis is back; sharing scores again")
            self._tally.add(reconnects=1)
        self._healthy = True

    def _failed(self, error: Exception, failures: int) -> None:
        self._tally.add(failures=1)
        # A Cluster client learns of moved slots by itself; of dead nodes it is told by the others here.
        if failures or isinstance(error, (redis.ConnectionError, redis.TimeoutError, OSError)):
            self._connection.close()
        if not isinstance(error, ERRORS):
            self._tally.add(bugs=1)
            log_bug(logger, "the store in Redis (scores are not shared for now)", error)
        else:
            reason = str(self._explain(error))
            # Once for each cause: a corrected password may show that rights are missing.
            if self._healthy is not False or reason != self._reason:
                logger.warning("%s Scores are not shared until then; serving goes on.", reason)
            self._reason = reason
        self._healthy = False

    def _explain(self, error: Exception) -> StoreError:
        return explain(error, self._where, self._timeout_s)


def _raise(error: Exception) -> None:
    raise error
